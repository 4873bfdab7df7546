"""A folder of checkpoints to be harmed while it is saved to, and what must hold of it afterwards.

It holds the epochs 1 (the best), 2 and 3, and what an earlier crash left. The save under test writes epoch
4 and keeps the last two and the best, so it removes epoch 2 and the leftovers.
"""

import functools
import shutil
import warnings
from pathlib import Path

import gymnasium
import torch

from faults.trial import OK
from metta.agent.factory import make_policy
from metta.errors import CheckpointError, MettaWarning
from metta.files import TEMPORARY
from metta.rl.resume.checkpointer import PendingCheckpoint, TrainingCheckpointer
from metta.stateful import digest_of
from metta.store.checkpoints.files import (
    checkpoint_folders,
    read_checkpoint,
    read_newest_checkpoint,
    write_checkpoint,
)
from metta.store.policies.file import freeze_policy
from metta.train.train_config import AgentConfig

KEEP_LAST = 2
RUN_ID = "0" * 32
LEFT = f"{TEMPORARY}{RUN_ID}-left"
BEST, OLD, LATEST, NEW, NEXT = 1, 2, 3, 4, 5
_SCORES = {BEST: 9.0, OLD: 1.0}

SAVED, NOT_SAVED, SAVED_WITH_WARNING, IN_DOUBT = 0, 10, 11, 12
"""How a save ended, also as exit codes; in doubt: the error does not promise that nothing was written."""


@functools.cache
def pending(epoch: int) -> PendingCheckpoint:
    """The run at one epoch; no two epochs have a number in common."""
    space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    config = AgentConfig(hidden_size=8)
    policy = make_policy(space, gymnasium.spaces.Discrete(2), config, seed=epoch)
    frozen = freeze_policy(policy)
    moments = {name: torch.full_like(value, epoch) for name, value in frozen.tensors.items()}
    snapshot = {
        "policy": {"version": 1, "state": frozen.tensors},
        "optimizer": {"version": 1, "state": {"moments": moments, "lr": 0.1}},
        "trainer_state": {"version": 1, "state": {"epoch": epoch}},
    }
    score = {"score": _SCORES[epoch]} if epoch in _SCORES else {}
    return PendingCheckpoint(epoch, 100 * epoch, frozen, snapshot, score)


@functools.cache
def digest(epoch: int) -> str:
    return digest_of(pending(epoch).snapshot)


def prepare(folder: Path) -> None:
    """Write the folder as it is before the save under test."""
    for epoch in (BEST, OLD, LATEST):
        now = pending(epoch)
        about = {**now.metadata, "epoch": epoch, "agent_step": now.agent_step}
        write_checkpoint(folder, now.snapshot, now.policy, about, run_id=RUN_ID)
    left = folder / LEFT
    left.mkdir()
    shutil.copy(folder / "epoch_000003" / "state.json", left)


def save(folder: str | Path, epoch: int = NEW) -> int:
    """Save one epoch and prune; returns how it ended. Anything but metta's own errors is raised."""
    checkpointer = TrainingCheckpointer(folder, keep_last=KEEP_LAST, run_id=RUN_ID)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            checkpointer.commit(pending(epoch))
        except CheckpointError as error:
            untouched = "older checkpoints are untouched" in str(error)
            return NOT_SAVED if untouched else IN_DOUBT
    wrong = [str(one.message) for one in caught if not issubclass(one.category, MettaWarning)]
    assert not wrong, wrong
    return SAVED_WITH_WARNING if caught else SAVED


def examine(folder: Path, *, saved: bool | None) -> tuple[str, str | None]:
    """Whether all is well after a fault, and the digest of the newest checkpoint.

    `saved` is whether epoch 4 must exist; None: it may. The folder is used up: the last thing to be
    seen is that the next save works, and leaves nothing behind that is not a checkpoint.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            newest = _examine_contents(folder, saved=saved)
            _examine_next_save(folder, newest)
        except (_Wrong, CheckpointError, Warning, OSError) as error:
            return f"{type(error).__name__.strip('_')}: {error}", None
    return OK, digest(newest)


class _Wrong(Exception):  # noqa: N818  # it is read, not handled
    """What must not be."""


def _examine_contents(folder: Path, *, saved: bool | None) -> int:
    found = set()
    for path in checkpoint_folders(folder):
        checkpoint = read_checkpoint(path)
        if digest_of(checkpoint.snapshot) != digest(checkpoint.epoch):
            raise _Wrong(f"{path.name} holds other numbers than were saved")
        found.add(checkpoint.epoch)
    others = {path.name for path in folder.iterdir()} - {f"epoch_{epoch:06d}" for epoch in found}
    if not all(name.startswith(TEMPORARY) for name in others):
        raise _Wrong(f"{sorted(others)} are left")
    needed = {BEST, LATEST} | ({NEW} if saved else set()) | (set() if NEW in found else {OLD})
    if not needed <= found or (saved is False and NEW in found):
        raise _Wrong(f"epochs {sorted(found)} are there, {sorted(needed)} must be")
    newest = read_newest_checkpoint(folder)
    if newest is None or newest.epoch != max(found):
        raise _Wrong(f"of {sorted(found)} the newest is {newest and newest.epoch}")
    return newest.epoch


def _examine_next_save(folder: Path, newest: int) -> None:
    if save(folder, NEXT) != SAVED:
        raise _Wrong("the next save does not work")
    expected = {f"epoch_{epoch:06d}" for epoch in (BEST, newest, NEXT)}
    found = {path.name for path in folder.iterdir()}
    if found != expected:
        raise _Wrong(f"the next save leaves {sorted(found)}")
    if digest_of(read_checkpoint(folder / "epoch_000005").snapshot) != digest(NEXT):
        raise _Wrong("the next save wrote other numbers")
