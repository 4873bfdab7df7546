"""Certifying a set-up: one that is exact, and one that is not."""

import functools
import json
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from metta.errors import MettaError
from metta.testing import certification
from metta.testing.certification import certify
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

SMALL = ["CartPole-v1", "num_envs=2", "horizon=8", "hidden_size=8", "minibatch_size=16"]


class Forked:
    """A process of the certificate that has imported everything already."""

    def __init__(self, zygote: Zygote, folder: Path, *words: str) -> None:
        self.child = zygote.start("tests.children:certified", folder=str(folder), words=words)
        self.wait, self.kill, self.pid = self.child.wait, self.child.kill, self.child.pid

    def poll(self) -> int | None:
        return self.child.zygote.status_of(self.child.pid)


def test_every_component_is_exact_when_environments_can_be_brought_back(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certification, "_start", functools.partial(Forked, zygote))
    assert main(["certify", *SMALL, "--epochs", "2", "--kills", "1"]) == 0
    said = capsys.readouterr().out
    assert "environments are of class repeat" in said
    assert "CERTIFIED" in said
    for component in ("policy", "optimizer", "environments", "collector", "trainer_state"):
        assert f"  {component}" in said
    assert "DIFFERS" not in said


def test_the_first_difference_is_named_when_environments_begin_anew(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certification, "_start", functools.partial(Forked, zygote))
    words = [*SMALL, "env_restore=boundary", "--epochs", "2", "--kills", "1", "--json"]
    assert main(["certify", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["exact"], found["noise"], found["kills"]) == (False, None, [1])
    assert found["differences"]["collector"].startswith("epoch ")
    assert "differs in" in found["differences"]["policy"]
    assert "boundary" in found["support"]


def test_it_is_said_when_the_set_up_does_not_train_at_all() -> None:
    config = apply_settings(TrainingConfig(), {"env": "NoSuchEnv-v0", "num_envs": 2})
    with pytest.raises(MettaError, match=r"does not train: .*NoSuchEnv"):
        certify(config, epochs=2, kills=1)
