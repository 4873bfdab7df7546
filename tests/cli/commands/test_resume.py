import json
import shlex
import shutil
import warnings
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.cli.policy_names import find_run
from metta.errors import ConfigError, MettaWarning
from metta.loggers import read_events
from metta.store.checkpoints.files import list_checkpoints
from metta.train.train_config import TrainingConfig

SMALL = [
    "num_envs=2",
    "n_steps=8",
    "n_epochs=1",
    "num_minibatches=1",
    "hidden_size=8",
    "eval_episodes=2",
    "final_replay=false",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    words = ["train", "cartpole", *SMALL, "total_timesteps=48", "--run", "first"]
    assert main([*words, "--output", str(output)]) == 0
    return output


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A folder with one run of 48 steps."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def resume(runs: Path, *words: str) -> int:
    return main(["resume", *words, "--output", str(runs)])


def test_training_goes_on_when_a_run_is_resumed_for_longer(runs: Path) -> None:
    assert resume(runs, "first", "total_timesteps=96") == 0
    folder = runs / "first"
    assert list_checkpoints(folder / "checkpoints")[-1].epoch == 6
    assert TrainingConfig.from_yaml(folder / "config.yaml").trainer.total_timesteps == 96
    starts = [
        event.payload for event in read_events(folder / "events.jsonl") if event.kind == "run_start"
    ]
    assert [start["continued"] for start in starts] == [False, True]


def test_the_origin_of_settings_is_kept_when_a_run_is_resumed(runs: Path) -> None:
    resume(runs, "first", "total_timesteps=64")
    stored = json.loads((runs / "first" / "provenance.json").read_text())["settings"]
    assert stored["trainer.ppo.gamma"]["origin"] == "preset cartpole"
    assert stored["trainer.rollout.num_envs"]["origin"] == "command line"
    total = stored["trainer.total_timesteps"]
    assert (total["value"], total["origin"]) == (64, "command line")
    assert total["overrides"][0]["value"] == 48


def test_nothing_more_is_trained_when_the_run_is_done(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list_checkpoints(runs / "first" / "checkpoints")[-1].path
    rows = (runs / "first" / "metrics.csv").read_text()
    assert resume(runs, "first") == 0
    assert list_checkpoints(runs / "first" / "checkpoints")[-1].path == before
    assert (runs / "first" / "metrics.csv").read_text() == rows


def test_the_run_is_found_by_path_or_name(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_run("first", runs) == runs / "first"
    assert find_run(str(runs / "first"), Path("elsewhere")) == runs / "first"
    monkeypatch.chdir(runs)
    assert find_run("first", Path("elsewhere")) == Path("first")


def test_the_name_is_suggested_when_it_is_misspelt(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(runs, "frist") == 2
    assert "did you mean 'first'?" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="there is no run 'x'"):
        find_run("x", runs / "nowhere")


@pytest.mark.parametrize("word", ["acrobot", "other.yaml"])
def test_other_settings_are_refused_when_they_would_replace_the_runs(
    runs: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(runs, "first", word) == 2
    assert f"{word} would replace the run's settings" in capsys.readouterr().err


def test_a_run_goes_on_when_its_provenance_is_lost(runs: Path) -> None:
    (runs / "first" / "provenance.json").unlink()
    assert resume(runs, "first", "total_timesteps=64") == 0
    stored = json.loads((runs / "first" / "provenance.json").read_text())["settings"]
    assert stored["trainer.ppo.gamma"]["origin"].startswith(str(runs / "first" / "config.yaml"))


def test_it_says_where_it_goes_on_when_there_is_a_checkpoint(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "resumes from epoch" not in capsys.readouterr().out
    assert resume(runs, "first", "total_timesteps=64") == 0
    assert "resumes from epoch 3 (48 steps)\n" in capsys.readouterr().out
    words = ["train", "cartpole", *SMALL, "total_timesteps=80", "--run", "first"]
    assert main([*words, "--output", str(runs)]) == 0
    assert "resumes from epoch 4 (64 steps)\n" in capsys.readouterr().out


def test_a_run_is_refused_when_it_has_no_checkpoint(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(runs / "first" / "checkpoints")
    events = (runs / "first" / "events.jsonl").read_text()
    capsys.readouterr()
    assert resume(runs, "first") == 2
    error = capsys.readouterr().err
    assert "ConfigError" in error
    assert "has no checkpoint to continue from" in error
    assert (runs / "first" / "events.jsonl").read_text() == events
    advice = shlex.split(error.partition("with: ")[2])
    assert advice[:2] == ["metta", "train"]
    with warnings.catch_warnings():
        warnings.simplefilter("always", MettaWarning)
        assert main(advice[1:]) == 0
    assert "saved a policy at epoch 3, but" in capsys.readouterr().err
    assert list_checkpoints(runs / "first" / "checkpoints")[-1].epoch == 3


def test_damage_is_told_of_when_no_checkpoint_can_be_read(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for manifest in (runs / "first" / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    assert resume(runs, "first") == 1
    assert "CheckpointError" in capsys.readouterr().err


def test_a_foreign_run_does_not_remove_checkpoints_of_another_one(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The foreign run names the victim's folder as its own."""
    victim = runs / "first" / "checkpoints"
    before = sorted(path.name for path in victim.rglob("*"))
    foreign = runs / "foreign"
    shutil.copytree(runs / "first", foreign)
    about = json.loads((foreign / "run.json").read_text())
    (foreign / "run.json").write_text(json.dumps({**about, "checkpoint_dir": str(victim)}))
    assert main(["resume", str(foreign), "total_timesteps=160", "keep_last=1"]) == 2
    assert sorted(path.name for path in victim.rglob("*")) == before
    command = shlex.join(["metta", "resume", str(foreign), "--checkpoint-dir", str(victim)])
    assert capsys.readouterr().err.strip().endswith(f"only if you name it: {command}")


def test_a_run_with_folders_outside_goes_on_when_the_told_commands_are_given(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, checkpoints, replays = runs / "first", runs / "out {side}", runs / "re plays"
    (first / "checkpoints").rename(checkpoints)
    about = json.loads((first / "run.json").read_text())
    about |= {"checkpoint_dir": str(checkpoints), "replay_dir": str(replays)}
    (first / "run.json").write_text(json.dumps(about))
    words = ["resume", str(first)]
    for option in ("--checkpoint-dir", "--replay-dir"):
        assert main([*words, "total_timesteps=64"]) == 2
        said = capsys.readouterr().err.strip().rpartition("only if you name it: ")[2]
        words = shlex.split(said)[1:]
        assert option in words
    assert main([*words, "total_timesteps=64"]) == 0
    assert list_checkpoints(checkpoints)[-1].epoch == 4
    assert main(["profile", str(first), "--epochs", "1", "--warmup", "1"]) == 2
    assert "--checkpoint-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings", ["[]", "5", '{"trainer.seed": 5}', '{"trainer.seed": {"value": 1}}']
)
def test_a_run_goes_on_when_its_provenance_has_wrong_types(runs: Path, settings: str) -> None:
    (runs / "first" / "provenance.json").write_text(f'{{"settings": {settings}}}')
    assert resume(runs, "first", "total_timesteps=64") == 0
