"""Which checkpoints are kept."""

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from metta.agent.policy_record import PolicyRecord
from metta.store.checkpoint_files import (
    MANIFEST_FILE,
    TEMPORARY,
    CheckpointEntry,
    checkpoint_folders,
    list_checkpoints,
    score_of,
)

__all__ = ["best_of", "prune_checkpoints"]

Scored = TypeVar("Scored", CheckpointEntry, PolicyRecord)


def prune_checkpoints(
    folder: str | os.PathLike[str],
    *,
    keep_last: int,
    keep_every: int = 0,
    newest: Path | None = None,
) -> list[Path]:
    """Remove checkpoints that nobody asked to keep; returns their paths.

    Kept are the newest `keep_last`, those whose epoch is a multiple of `keep_every` (0: none), and the
    one with the best score; and `newest`, which was just written, perhaps below the epoch of older ones
    that cannot be read. What a crash left unfinished goes too. Each folder loses its name before
    its content, so that nobody ever finds half a checkpoint.
    """
    entries = list_checkpoints(folder)
    kept = {entry.path.name for entry in _wanted(entries, max(keep_last, 1), keep_every)}
    kept |= set() if newest is None else {newest.name}
    removed = [entry.path for entry in entries if entry.path.name not in kept]
    for path in [*removed, *_unfinished(Path(folder))]:
        hidden = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-old")
        path.rename(hidden)
        shutil.rmtree(hidden)
    return removed


def best_of(found: Sequence[Scored]) -> Scored | None:
    """The checkpoint or record with the highest score, the newest of equals; None without scores."""
    scores = [(score_of(one.metadata), one) for one in found]
    scored = [(score, one) for score, one in scores if score is not None]
    return max(reversed(scored), key=lambda pair: pair[0], default=(0.0, None))[1]


def _wanted(
    entries: Sequence[CheckpointEntry], keep_last: int, keep_every: int
) -> list[CheckpointEntry]:
    newest = list({entry.epoch: entry for entry in entries}.values())  # a later one supersedes
    best = best_of(newest)
    return [
        *newest[-keep_last:],
        *(entry for entry in newest if keep_every and entry.epoch % keep_every == 0),
        *([best] if best is not None else []),
    ]


def _unfinished(folder: Path) -> list[Path]:
    left = [path for path in folder.glob(f"{TEMPORARY}*") if path.is_dir()]
    nameless = [p for p in checkpoint_folders(folder) if not (p / MANIFEST_FILE).exists()]
    return [*left, *nameless]
