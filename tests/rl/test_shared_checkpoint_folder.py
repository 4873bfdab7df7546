"""Two runs that keep their checkpoints in one folder: neither removes what the other is writing."""

import importlib
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metta.errors import MettaWarning
from metta.rl.trainer import train
from metta.store.checkpoints.files import list_checkpoints
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
    "total_timesteps": 32,
    "eval_episodes": 0,
    "monitor_seconds": 0,
    "verbose": False,
}


def begin(folder: Path, name: str, **changed: Any) -> None:
    config = apply_settings(TrainingConfig(), {**SETTINGS, **changed})
    train(folder / name, config, checkpoint_dir=folder / "shared")


def train_another_before(
    function: str, is_wanted: Callable[[Path], bool], folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """A whole run saves and removes checkpoints before the first call of a function that is wanted."""
    module, _, name = function.rpartition(".")
    original, has_begun = getattr(importlib.import_module(module), name), threading.Event()

    def interrupted(path: Path, *arguments: Any) -> Any:
        if is_wanted(path) and not has_begun.is_set():
            has_begun.set()
            begin(folder, "second", eval_episodes=1)
        return original(path, *arguments)

    patch.setattr(function, interrupted)


def begin_without_warnings(folder: Path, **changed: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MettaWarning)
        begin(folder, "first", **changed)
    assert len({entry.run_id for entry in list_checkpoints(folder / "shared")}) == 2
    assert not list((folder / "shared").rglob(".tmp*"))


def test_a_save_under_way_survives_the_saves_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = "metta.store.checkpoints.files._write_json"
    train_another_before(written, lambda path: True, tmp_path, monkeypatch)
    begin_without_warnings(tmp_path)


def test_a_policy_on_its_way_to_be_scored_survives_the_start_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_owed(path: Path) -> bool:
        return "owed" in path.parts

    train_another_before("metta.files.rename", is_owed, tmp_path, monkeypatch)
    begin_without_warnings(tmp_path, eval_episodes=1, evaluate_interval=1, where="process")
