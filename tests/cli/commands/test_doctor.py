"""What `metta doctor` prints, and with which code it ends."""

import json
from pathlib import Path

import pytest

import metta.cli.commands.doctor  # noqa: F401  # the command under test
from metta.cli.main import main
from metta.doctor import check_env
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError

QUICK = ["--no-probes", "--play-steps", "300"]

TEXT_REWARD = """
from metta.envs.toy import CorridorEnv

class PaysInWords(CorridorEnv):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, "[bold]much", *rest)
"""


def test_it_ends_well_when_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "metta.envs.toy:CorridorEnv", *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "CorridorEnv: nothing wrong in" in shown
    assert "seeding" in shown


def test_cause_and_cure_are_shown_when_there_is_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pays_in_words.py"
    file.write_text(TEXT_REWARD)
    assert main(["doctor", f"{file}:PaysInWords", *QUICK]) == 1
    shown = capsys.readouterr().out
    assert "[bold]much" in shown  # what an environment says is never markup
    assert "cause: " in shown
    assert "cure: " in shown
    assert "1 fault" in shown


def test_findings_are_data_when_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["metta.envs.toy:CorridorEnv", "learning_rate=0.5", "--json"]
    assert main(["doctor", *words, *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    found = [finding for finding in report["findings"] if finding["severity"] == "warning"]
    assert [warning["name"] for warning in found] == ["learning rate"]
    assert all(warning["cause"] and warning["cure"] for warning in found)


def test_the_recipe_stands_apart_when_settings_are_open() -> None:
    report = check_env(CorridorEnv, play_steps=300, probes=False, learning_rate=0.5)
    first, *values = report.to_dict()["recipe"]
    assert first.startswith("recipe 'discrete control' (discrete actions, observations of numbers)")
    assert f"recipe   {first}" in str(report).splitlines()
    assert "trainer.ppo.update_epochs=10 (as in" in " ".join(values)
    assert "learning_rate" not in " ".join(values)
    assert check_env(CorridorEnv, play_steps=300, probes=False, recipe="none").recipe == ()


def test_too_few_steps_are_refused_when_they_would_show_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "CartPole-v1", "--play-steps", "3"]) == 2
    assert "play_steps=3" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="100 or more"):
        check_env("CartPole-v1", play_steps=3)
