"""What happens when files of a run are removed while it trains; each through the command."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events
from metta.store.checkpoints.files import checkpoint_folders, read_newest_checkpoint

SETTINGS = ("num_envs=2", "horizon=8", "hidden_size=8", "update_epochs=1", "eval_episodes=0")
WAIT_SECONDS = 240.0


def start(run: Path) -> subprocess.Popen[str]:
    """A training that does not end by itself."""
    words = ["train", "CartPole-v1", "--output", str(run.parent), "--run", run.name, *SETTINGS]
    words += ["total_timesteps=1_000_000_000", "checkpoint_interval=5", "verbose=false"]
    command = [sys.executable, "-m", "metta.cli.main", *words, "monitor_seconds=0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_save(process: subprocess.Popen[str], run: Path, after: int = -1) -> int:
    """Wait for a checkpoint of a later epoch; returns its epoch."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        epochs = [
            int(path.name[6:].split(".")[0]) for path in checkpoint_folders(run / "checkpoints")
        ]
        if max(epochs, default=-1) > after:
            return max(epochs)
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint after epoch {after}: {process.communicate()[0]}")


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv", "checkpoints"])
def test_what_is_removed_from_a_run_that_trains_is_there_again(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    process = start(run)
    epoch = wait_for_save(process, run)
    removed = run / name
    shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
    wait_for_save(process, run, epoch + 10)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=WAIT_SECONDS)[0]
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Traceback" not in said
    assert ("events.jsonl was removed" in said) == (name == "events.jsonl")
    events = list(read_events(run / "events.jsonl"))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    rows = [row.epoch for row in metric_rows(run / "events.jsonl")]
    checkpoint = read_newest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert rows == list(range(1, checkpoint.epoch + 1))
    lines = (run / "metrics.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[1]) for line in lines] == rows


def test_training_stops_with_a_clear_error_when_its_folder_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run)
    wait_for_save(process, run)
    run.rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    said = process.communicate(timeout=WAIT_SECONDS)[0]
    assert process.returncode == 1, said
    assert "RunRemovedError" in said
    assert str(run) in said
    assert "Traceback" not in said
