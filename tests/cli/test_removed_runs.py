"""What happens when files of a run are removed while it trains; each through the command."""

import shutil
import signal
import time
from pathlib import Path

import pytest

from faults.zygote import Child, Zygote
from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events
from metta.store.checkpoints.files import checkpoint_folders, read_newest_checkpoint

WAIT_SECONDS = 100.0


def start(zygote: Zygote, run: Path) -> Child:
    """A training that does not end by itself."""
    return zygote.start("tests.cli.console_children:train", run=str(run), steps=10**9)


def said_by(run: Path) -> str:
    return "".join(path.read_text() for path in sorted(run.parent.glob(f"{run.name}-?.txt")))


def wait_for_save(run: Path, after: int = -1) -> int:
    """Wait for a checkpoint of a later epoch; returns its epoch."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        epochs = [
            int(path.name[6:].split(".")[0]) for path in checkpoint_folders(run / "checkpoints")
        ]
        if max(epochs, default=-1) > after:
            return max(epochs)
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint after epoch {after}: {said_by(run)}")


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv", "checkpoints"])
def test_what_is_removed_from_a_run_that_trains_is_there_again(
    zygote: Zygote, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    child = start(zygote, run)
    epoch = wait_for_save(run)
    # at once, by another name: the trainer prunes the folder meanwhile
    gone = (run / name).rename(tmp_path / "gone")
    shutil.rmtree(gone, ignore_errors=True) if gone.is_dir() else gone.unlink()
    wait_for_save(run, epoch + 10)
    child.kill(signal.SIGTERM)
    code, said = child.wait(WAIT_SECONDS), said_by(run)
    assert code == 128 + signal.SIGTERM, said
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


def test_training_stops_with_a_clear_error_when_its_folder_is_removed(
    zygote: Zygote, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = start(zygote, run)
    wait_for_save(run)
    run.rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    code, said = child.wait(WAIT_SECONDS), said_by(run)
    assert code == 1, said
    assert "RunRemovedError" in said
    assert str(run) in said
    assert "Traceback" not in said
