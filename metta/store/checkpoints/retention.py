"""Which checkpoints are kept."""

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, MettaWarning
from metta.files import remove_folders, temporary_folders
from metta.store.checkpoints.files import checkpoint_folders, verify_checkpoint
from metta.store.checkpoints.late_scores import with_late_scores
from metta.store.checkpoints.manifest import (
    CheckpointEntry,
    lower_bound_of,
    read_entry,
    score_of,
)

__all__ = ["best_first", "best_of", "prune_checkpoints"]

Scored = TypeVar("Scored", CheckpointEntry, PolicyRecord)


def prune_checkpoints(
    folder: str | os.PathLike[str],
    *,
    keep_last: int,
    keep_every: int = 0,
    keep_epochs: Collection[int] = (),
    newest: Path | None = None,
    run_id: str | None = None,
) -> list[Path]:
    """Remove checkpoints of a run that need not be kept; returns their paths.

    Only those that carry its `run_id` count, and are removed. Checkpoints of other runs, and of older
    versions of metta, which wrote no ids, are not touched.

    Kept are the newest `keep_last`, those whose epoch is a multiple of `keep_every` (0: none) or among
    `keep_epochs`, and the one with the best score, its own or a late one; and `newest`, which was just
    written and verified, perhaps below the epoch of older ones that cannot be read. Damaged ones do not
    count, so that they never replace a whole one; they stay, with a warning, until they are older than all
    that is kept. Unfinished folders of this run, which a crash left, are removed too: they have its id in
    their names. A failure is an OSError, and harms nothing that is kept.
    """
    unfinished = temporary_folders(Path(folder), run_id)
    inspection = _Inspection(newest)
    named = checkpoint_folders(folder)
    readable = inspection.entries_of(path for path in named if not path.is_symlink())
    own = [entry for entry in readable if entry.run_id == run_id]
    entries = with_late_scores(folder, own)
    wanted = _wanted(entries, max(keep_last, 1), keep_every, inspection.is_sound)
    wanted += [entry for entry in entries if entry.epoch in keep_epochs]
    kept = {entry.path.name for entry in wanted} | inspection.trusted | inspection.damaged
    removed = [entry.path for entry in entries if entry.path.name not in kept]
    if inspection.damaged:
        warnings.warn(
            f"{sorted(inspection.damaged)} in {str(folder)!r} cannot be read, and do not count among the "
            "checkpoints that are kept",
            MettaWarning,
            stacklevel=2,
        )
    remove_folders([*removed, *unfinished], owner=run_id)
    return removed


def best_of(found: Sequence[Scored]) -> Scored | None:
    """The checkpoint or record that is known to be best, the newest of equals; None without scores."""
    return next(best_first(found), None)


def best_first(found: Sequence[Scored]) -> Iterator[Scored]:
    """Entries with a score, the best first, the newer of equals before the older.

    The best is the one with the highest lower bound of its score; if some have no lower bound, scores are
    compared as they are.
    """
    scored = [(score_of(one.metadata), one) for one in reversed(found)]
    scored = [(score, one) for score, one in scored if score is not None]
    bounds = [lower_bound_of(one.metadata) for _, one in scored]
    ranks = [score for score, _ in scored] if None in bounds else bounds
    ranked = zip(ranks, (one for _, one in scored), strict=True)
    for _, one in sorted(ranked, key=lambda pair: pair[0] or 0.0, reverse=True):
        yield one


def _wanted(
    entries: Sequence[CheckpointEntry],
    keep_last: int,
    keep_every: int,
    is_sound: Callable[[CheckpointEntry], bool],
) -> list[CheckpointEntry]:
    """Chooses what to keep; reads as few checkpoints as the rule needs."""
    current = _last_of_each_epoch(entries, is_sound)
    return [
        *islice(filter(is_sound, reversed(current)), keep_last),
        *(entry for entry in current if keep_every and entry.epoch % keep_every == 0),
        *islice(filter(is_sound, best_first(current)), 1),
    ]


def _last_of_each_epoch(
    entries: Sequence[CheckpointEntry], is_sound: Callable[[CheckpointEntry], bool]
) -> list[CheckpointEntry]:
    """A later checkpoint of an epoch supersedes those before it, if it is sound."""
    last: dict[int, CheckpointEntry] = {}
    for entry in entries:
        if entry.epoch not in last or is_sound(entry):
            last[entry.epoch] = entry
    return list(last.values())


class _Inspection:
    """Distinguishes sound checkpoints from damaged ones; reads each once, and `newest` not again."""

    def __init__(self, newest: Path | None) -> None:
        self.trusted = set() if newest is None else {newest.name}
        self.damaged: set[str] = set()
        self._read: set[str] = set()

    def entries_of(self, paths: Iterator[Path]) -> list[CheckpointEntry]:
        """Checkpoints that look complete."""
        entries = []
        for path in paths:
            try:
                entries.append(read_entry(path))
            except CheckpointError:
                self.damaged.add(path.name)
        return entries

    def is_sound(self, entry: CheckpointEntry) -> bool:
        """Whether every byte is as it was written."""
        name = entry.path.name
        if name not in self.trusted | self._read:
            self._read.add(name)
            try:
                verify_checkpoint(entry.path)
            except CheckpointError:
                self.damaged.add(name)
        return name not in self.damaged
