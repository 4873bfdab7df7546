"""A run's log and table whose names lead to another inode than they did when the run began."""

import csv
import itertools
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metta.errors import MettaWarning
from metta.loggers import read_events
from metta.rl.hooks import TrainerHook
from metta.rl.trainer import train
from metta.rl.training_state import TrainerState
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "checkpoint_interval": 1,
    "total_timesteps": 96,
    "eval_episodes": 0,
    "monitor_seconds": 0,
    "verbose": False,
}
NAMES = ("events.jsonl", "metrics.csv")


class AfterEpoch(TrainerHook):
    """Does something to the files of a run once its third epoch is in them."""

    order = 1000

    def __init__(self, run: Path, act: Callable[[], object]) -> None:
        self.run, self.act = run, act

    def on_epoch_end(self, trainer_state: TrainerState) -> None:
        if trainer_state.epoch == 3:
            while epochs_in(self.run) != [1, 2, 3]:  # another thread writes the table
                time.sleep(0.005)
            self.act()


def epochs_in(run: Path) -> list[int]:
    with (run / "metrics.csv").open() as table:
        return [int(row["epoch"]) for row in csv.DictReader(table)]


def train_in(run: Path, act: Callable[[], object]) -> None:
    train(run, apply_settings(TrainingConfig(), SETTINGS), hooks=[AfterEpoch(run, act)])


def check_files(run: Path) -> None:
    numbers = [event.sequence for event in read_events(run / "events.jsonl")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert epochs_in(run) == [1, 2, 3, 4, 5, 6]


def inodes_in(run: Path) -> list[int]:
    return [os.stat(run / name).st_ino for name in NAMES]  # noqa: PTH116  # `Path.stat` may be patched


def test_nothing_is_copied_when_a_mount_gives_other_inode_numbers_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstat, numbers, before = Path.lstat, itertools.count(1), []

    def changing(path: Path) -> os.stat_result:
        found = lstat(path)
        if path.name not in NAMES:
            return found
        return os.stat_result([found[0], found.st_ino + next(numbers), *found[2:]])

    monkeypatch.setattr(Path, "lstat", changing)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MettaWarning)
        train_in(tmp_path, lambda: before.extend(inodes_in(tmp_path)))
    assert next(numbers) > 6
    assert inodes_in(tmp_path) == before
    assert not list(tmp_path.glob("*.found-*"))
    check_files(tmp_path)


def test_a_table_continues_in_a_copy_that_takes_its_name(tmp_path: Path) -> None:
    copied: list[int] = []

    def copy() -> None:
        shutil.copy(tmp_path / "metrics.csv", tmp_path / "copy")
        (tmp_path / "copy").rename(tmp_path / "metrics.csv")
        copied.extend(inodes_in(tmp_path))

    with warnings.catch_warnings():
        warnings.simplefilter("error", MettaWarning)
        train_in(tmp_path, copy)
    assert inodes_in(tmp_path) == copied
    check_files(tmp_path)


def test_a_log_is_written_again_when_another_file_has_its_name(tmp_path: Path) -> None:
    def replace() -> None:
        for name in NAMES:
            content = (tmp_path / name).read_bytes()
            (tmp_path / "edited").write_bytes(content[:-3] + b"0" + content[-2:])
            (tmp_path / "edited").rename(tmp_path / name)

    with pytest.warns(MettaWarning, match=r"is written again.* is now .*events\.jsonl\.found-1"):
        train_in(tmp_path, replace)
    assert sorted(path.name for path in tmp_path.glob("*.found-*")) == [
        f"{name}.found-1" for name in NAMES
    ]
    check_files(tmp_path)
