"""`metta resume` trains with the settings that the run was saved with, whatever became of its files."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from metta.cli.main import main
from metta.errors import MettaWarning
from metta.rl.trainer import train
from metta.store.checkpoints.files import list_checkpoints
from metta.train.train_config import TrainingConfig

pytestmark = pytest.mark.filterwarnings("always::metta.errors.MettaWarning")

WORDS = ["CartPole-v1", "num_envs=2", "horizon=16", "hidden_size=8", "update_epochs=1",
         "num_minibatches=1", "checkpoint_interval=1", "total_timesteps=64", "monitor_seconds=0",
         "gamma=0.98", "verbose=false", "final_replay=false"]  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    words = ["train", *WORDS, "--run", "first", "--output", str(output), "--eval-episodes", "0"]
    assert main(words) == 0
    return output / "first"


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "first"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1, text
    path.write_text(text.replace(old, new, 1))


def files_of(run: Path) -> dict[str, str]:
    names = ("config.yaml", "run.json", "provenance.json", "events.jsonl")
    return {name: (run / name).read_text() for name in names if (run / name).exists()}


def refusal(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `metta resume` says when it refuses, with exit code 2, and touches nothing."""
    before = files_of(run)
    capsys.readouterr()
    assert main(["resume", str(run), "total_timesteps=128", *words]) == 2
    assert files_of(run) == before
    assert [entry.epoch for entry in list_checkpoints(run / "checkpoints")] == [1, 2]
    return capsys.readouterr().err


def test_resume_refuses_an_edited_config(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(run / "config.yaml", "gamma: 0.98", "gamma: 0.5")
    said = refusal(run, capsys)
    assert "trainer.ppo.gamma was 0.98, now 0.5" in said
    assert "--restore-settings" in said


@pytest.mark.parametrize("num_lines", [0, 1, 20, 40])
def test_resume_refuses_a_config_that_was_cut_off(
    num_lines: int, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run / "config.yaml"
    config.write_text("".join(config.read_text().splitlines(keepends=True)[:num_lines]))
    assert " was " in refusal(run, capsys)


def test_resume_refuses_a_config_that_is_missing_or_not_yaml(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.yaml").write_text("gamma: [0.98")
    assert re.search(r"not YAML(.|\n)*--restore-settings", refusal(run, capsys))
    (run / "config.yaml").unlink()
    assert re.search(r"is missing(.|\n)*--restore-settings", refusal(run, capsys))


def test_resume_refuses_an_edit_also_of_a_setting_that_may_change(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(run / "config.yaml", "keep_last: 3", "keep_last: 1")
    assert "trainer.checkpoint.keep_last was 3, now 1" in refusal(run, capsys)
    assert main(["resume", str(run), "total_timesteps=128", "keep_last=2"]) == 0
    assert re.search("keep_last was 3, now 1.*is replaced", capsys.readouterr().err)
    assert TrainingConfig.from_yaml(run / "config.yaml").trainer.checkpoint.keep_last == 2


def test_restore_settings_takes_them_from_the_checkpoint_and_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(run)["config.yaml"]
    edit(run / "config.yaml", "gamma: 0.98", "gamma: 0.5")
    assert main(["resume", str(run), "--restore-settings"]) == 0
    said = capsys.readouterr()
    assert "gamma was 0.98, now 0.5; it is replaced" in said.err
    assert f"settings are those of {run / 'checkpoints' / 'epoch_000002'}" in said.out
    assert files_of(run)["config.yaml"] == before
    (run / "config.yaml").unlink()
    assert main(["resume", str(run), "total_timesteps=96", "--restore-settings"]) == 0
    assert re.search(r"config.yaml.*cannot be read", capsys.readouterr().err)
    restored = before.replace("total_timesteps: 64", "total_timesteps: 96")
    assert files_of(run)["config.yaml"] == restored


def test_a_change_that_no_checkpoint_holds_yet_is_kept_by_the_next_resume(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between set-up and the next checkpoint: config.yaml is ahead, and run.json vouches for it."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("metta.rl.components.trainer.run_training", killed)
        main(["resume", str(run), "total_timesteps=128"])
    assert main(["resume", str(run)]) == 0
    assert list_checkpoints(run / "checkpoints")[-1].agent_step == 128


def test_a_resume_keeps_the_stored_origins_and_what_else_was_stored(run: Path) -> None:
    path = run / "provenance.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "initial_policy": "file:///elsewhere"}))
    assert main(["resume", str(run), "total_timesteps=96"]) == 0
    config = TrainingConfig.from_yaml(run / "config.yaml")
    train(run, config)
    found = json.loads(path.read_text())
    assert found["initial_policy"] == "file:///elsewhere"
    total = found["settings"].pop("trainer.total_timesteps")
    assert (total["value"], total["origin"]) == (96, "command line")
    stored["settings"].pop("trainer.total_timesteps")
    assert found["settings"] == stored["settings"]


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_a_damaged_run_file_is_named_and_nothing_is_written(
    content: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_text(content)
    events = (run / "events.jsonl").read_bytes()
    assert main(["resume", str(run), "total_timesteps=96"]) == 2
    assert re.search(r"run\.json.*cannot be used", capsys.readouterr().err)
    assert (run / "run.json").read_text() == content
    assert (run / "events.jsonl").read_bytes() == events


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_damaged_provenance_is_named_and_changes_no_number(
    content: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = shutil.copytree(run, tmp_path / "whole")
    (run / "provenance.json").write_text(content)
    assert main(["resume", str(run), "total_timesteps=96"]) == 0
    assert re.search(r"provenance\.json.*damaged", capsys.readouterr().err)
    assert main(["resume", str(whole), "total_timesteps=96"]) == 0
    policies = [
        folder / "checkpoints" / "epoch_000003" / "policy.safetensors" for folder in (run, whole)
    ]
    assert policies[0].read_bytes()[-500:] == policies[1].read_bytes()[-500:]


def test_an_edited_run_description_does_not_hide_another_environment(run: Path) -> None:
    edit(run / "run.json", '"own_environment": null', '"own_environment": "CorridorEnv"')
    assert main(["resume", str(run), "total_timesteps=96"]) == 0
    assert json.loads((run / "run.json").read_text())["own_environment"] is None


def test_python_replaces_an_edited_config_with_a_warning(run: Path) -> None:
    config = TrainingConfig.from_yaml(run / "config.yaml")
    edit(run / "config.yaml", "gamma: 0.98", "gamma: 0.5")
    with pytest.warns(MettaWarning, match="gamma was 0.98, now 0.5; it is replaced"):
        train(run, config)
    assert TrainingConfig.from_yaml(run / "config.yaml") == config


def test_a_run_of_an_older_version_resumes_by_its_files(run: Path) -> None:
    from metta.store.checkpoints.manifest import manifest_of

    for folder in (run / "checkpoints").glob("epoch_*"):
        tree = json.loads((folder / "state.json").read_text())
        del tree["conditions"]["state"]["settings"]
        (folder / "state.json").write_text(json.dumps(tree))
        manifest = json.loads((folder / "manifest.json").read_text())
        about = {"epoch": manifest["epoch"], "agent_step": manifest["agent_step"]}
        (folder / "manifest.json").write_text(json.dumps(manifest_of(folder, about)))
    described = json.loads((run / "run.json").read_text())
    del described["settings_sha256"]
    (run / "run.json").write_text(json.dumps(described))
    assert main(["resume", str(run), "--restore-settings"]) == 2
    assert main(["resume", str(run), "gamma=0.5", "total_timesteps=96"]) == 2
    assert main(["resume", str(run), "total_timesteps=96"]) == 0
