"""What `metta certify` says; tests/testing runs it for real."""

import pytest

import metta.cli.commands.certify  # noqa: F401  # the command under test
from metta.cli.main import main
from metta.testing.certification import Certificate

SMALL = ["CartPole-v1", "num_envs=2", "horizon=8", "hidden_size=8", "minibatch_size=16"]


def test_noise_is_told_apart_when_undisturbed_runs_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = Certificate("promise", 4, [1], {"policy": "epoch 1"}, ["policy"], "policy: epoch 1")
    assert not noisy.is_exact
    monkeypatch.setattr("metta.testing.certification.certify", lambda *_, **__: noisy)
    assert main(["certify", *SMALL]) == 1
    assert "NOT REPRODUCIBLE" in capsys.readouterr().out


def test_it_is_refused_when_there_is_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", *SMALL, "--epochs", "1"]) == 2
    assert "--epochs 2" in capsys.readouterr().err
