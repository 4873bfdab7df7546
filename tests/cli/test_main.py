"""`metta`, as it is typed."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metta import __version__
from metta.agent.factory import make_policy
from metta.cli.main import main
from metta.envs.toy import CorridorEnv
from metta.store.policy_file import load_weights
from metta.train.train_config import AgentConfig

TINY = ["n_steps=16", "n_envs=2", "n_epochs=1", "hidden_size=8"]
PNG = b"\x89PNG\r\n\x1a\n"


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def test_everything_is_saved_when_a_run_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "CartPole-v1", *TINY, "total_timesteps=64", "--eval-episodes", "2"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    run = only_run(tmp_path)
    names = {path.name for path in run.iterdir()}
    assert names == {"policy.safetensors", "config.json", "metrics.csv", "learning_curve.png"}
    assert (run / "learning_curve.png").read_bytes().startswith(PNG)
    output = capsys.readouterr()
    assert "training CartPole-v1 for 64 steps" in output.out
    assert "fresh episodes" in output.out
    assert str(run / "policy.safetensors") in output.out
    assert output.err == ""
    with (run / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["agent_step"] for row in rows] == ["32.0", "64.0"]
    assert math.isfinite(float(rows[-1]["policy_loss"]))
    config = json.loads((run / "config.json").read_text())
    assert config["trainer"]["rollout"]["horizon"] == 16
    # the preset of CartPole lies under the settings
    assert config["trainer"]["ppo"]["gamma"] == 0.98


def test_the_policy_can_be_read_back_when_a_run_was_saved(tmp_path: Path) -> None:
    import gymnasium

    arguments = ["train", "CartPole-v1", *TINY, "total_timesteps=32", "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    env = gymnasium.make("CartPole-v1")
    agent = AgentConfig(hidden_size=8)
    policy = make_policy(env.observation_space, env.action_space, agent)
    metadata = load_weights(only_run(tmp_path) / "policy.safetensors", policy)
    assert metadata["env"] == "CartPole-v1"
    assert metadata["agent_step"] == 32
    assert metadata["score"] is None


def test_the_default_environment_is_used_when_only_settings_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "total_timesteps=32", *TINY, "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert "training CartPole-v1 for 32 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "CartPole-v1", "learnig_rate=1"], "ConfigError: unknown setting 'learnig_rate'"),
        (["train", "CartPole-v1", "gamma=2"], "ConfigError: trainer.ppo.gamma"),
        (["train", "CartPole-v1", "fast"], "'fast' is not a setting; write NAME=VALUE"),
        (["train", "CartPole-v1", "=3"], "'=3' is not a setting"),
        (["train", "CartPole-v1", "n_steps=x"], "ConfigError: trainer.rollout.horizon"),
        (["train", "CartPool-v1"], "EnvError: gymnasium knows no environment 'CartPool-v1'"),
        (["train", "CartPole-v1", "batch_size=7"], "minibatch_size=7 does not divide"),
        (["train", "CartPole-v1", "device=banana"], "ConfigError: device='banana'"),
    ],
)
def test_an_error_is_one_message_when_the_user_can_mend_it(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--output", str(tmp_path / "runs")]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("metta: ")
    assert message in output.err
    assert "Traceback" not in output.err
    assert not (tmp_path / "runs").exists()


def test_an_output_is_refused_before_training_when_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "runs"):
        assert main(["train", "total_timesteps=1000000", "--output", str(output)]) == 2
        shown = capsys.readouterr()
        assert "choose another one" in shown.err
        assert "training" not in shown.out


def test_a_wrong_option_exits_with_two_when_it_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "--outputt", "x"])
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "train a policy on a Gymnasium environment"),
        (["train", "--help"], "NAME=VALUE"),
        (["--version"], f"metta {__version__}"),
    ],
)
def test_help_is_printed_when_it_is_asked_for(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert shown in capsys.readouterr().out


def test_help_is_printed_when_nothing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: metta" in capsys.readouterr().out


def test_the_run_is_saved_without_a_curve_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["train", *TINY, "total_timesteps=32", "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert "no learning curve: " in capsys.readouterr().out
    assert (only_run(tmp_path) / "policy.safetensors").is_file()


def test_a_bug_keeps_its_traceback_when_it_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("metta.cli.train.train", broken)
    with pytest.raises(ZeroDivisionError):
        main(["train", "--output", str(tmp_path)])


def test_what_was_learned_is_saved_when_the_user_interrupts(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run that would take hours."""
    process = subprocess.Popen(
        [sys.executable, "-m", "metta.cli.main", "train", "CartPole-v1", *TINY,
         "total_timesteps=100000000", "--output", str(tmp_path)],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a test run in the background may have been told to ignore Ctrl-C, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "steps/s" in line:  # the first progress line: training is under way
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert "saving what was learned" in out
    assert "Traceback" not in err
    run = only_run(tmp_path)
    assert (run / "policy.safetensors").is_file()
    assert (run / "learning_curve.png").read_bytes().startswith(PNG)


def test_an_interrupt_is_reported_when_it_comes_before_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("metta.cli.train.train", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "metta: interrupted\n"


def test_the_toy_world_is_no_gymnasium_id_when_it_is_not_registered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", CorridorEnv.__name__, "--output", str(tmp_path)]) == 2
    assert "EnvError" in capsys.readouterr().err


def test_every_setting_is_shown_with_its_value_when_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "Acrobot-v1", "gamma=0.5", "--list-settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "trainer.ppo.gamma = 0.5" in lines
    assert "env = Acrobot-v1" in lines
    assert "agent.normalize_observations = True" in lines  # of the preset
