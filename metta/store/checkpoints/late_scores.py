"""Scores that came after their checkpoints were written: ``scores.json`` beside them."""

import dataclasses
import json
import math
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metta.errors import CheckpointError, MettaWarning, UnsafeFileError
from metta.files import atomic_write_text
from metta.store.checkpoints.files import checkpoint_folders, epoch_of
from metta.store.checkpoints.manifest import CheckpointEntry, score_of, sealed
from metta.untrusted.json_files import brief, read_json

__all__ = [
    "SCORES_FILE",
    "LateScore",
    "add_late_score",
    "drop_late_scores",
    "read_late_scores",
    "with_late_scores",
]

SCORES_FILE = "scores.json"
_FORMAT = "metta-late-scores"
_FORMAT_VERSION = 1
_MAX_BYTES = 2**20
_MAX_DIGITS = 15
_writing = threading.Lock()
"""Reading, changing and writing the file is one step."""


class LateScore(NamedTuple):
    """The score of the policy of an epoch."""

    score: float
    lower_bound: float | None = None
    """How low the score may be; None: unknown."""


def add_late_score(
    checkpoint_dir: str | os.PathLike[str],
    epoch: int,
    score: float,
    lower_bound: float | None = None,
) -> bool:
    """Save the score of an epoch whose checkpoint is written already; returns whether it was saved.

        add_late_score("runs/first/checkpoints", 120, 31.5)

    It is not saved if it is not finite, or if the epoch has no checkpoint. Scores of epochs without a
    checkpoint are dropped. The file is replaced in one step; if that fails it is a `CheckpointError`, and
    no checkpoint is touched. One process at a time may write.
    """
    folder = Path(checkpoint_dir)
    try:
        with _writing:
            present = {epoch_of(path) for path in checkpoint_folders(folder)}
            if epoch not in present or not math.isfinite(score):
                return False
            late = LateScore(float(score), score_of({"score": lower_bound}))
            known = {**read_late_scores(folder), epoch: late}
            _write(folder, {one: known[one] for one in known if one in present})
    except OSError as error:
        raise CheckpointError(
            f"the score of epoch {epoch} could not be written to {str(folder / SCORES_FILE)!r}: {error}; "
            "checkpoints are untouched"
        ) from error
    return True


def drop_late_scores(checkpoint_dir: str | os.PathLike[str]) -> None:
    """Drop the scores of epochs whose checkpoints are gone; a failure is an OSError."""
    folder = Path(checkpoint_dir)
    with _writing:
        known = read_late_scores(folder)
        present = {epoch_of(path) for path in checkpoint_folders(folder)} if known else set()
        if known.keys() - present:
            _write(folder, {one: known[one] for one in known if one in present})


def _write(folder: Path, scores: Mapping[int, LateScore]) -> None:
    kept = {str(epoch): scores[epoch] for epoch in sorted(scores)}
    about = {"format": _FORMAT, "format_version": _FORMAT_VERSION, "scores": kept}
    atomic_write_text(folder / SCORES_FILE, json.dumps(sealed(about)))


def read_late_scores(checkpoint_dir: str | os.PathLike[str]) -> dict[int, LateScore]:
    """Epoch -> its score; empty without a file, or with a warning if the file cannot be used."""
    path = Path(checkpoint_dir) / SCORES_FILE
    if not os.path.lexists(path):
        return {}
    try:
        return _scores_in(read_json(path, max_bytes=_MAX_BYTES, follow_symlink=False))
    except (UnsafeFileError, ValueError) as error:
        warnings.warn(
            f"late scores are left out, because {str(path)!r} cannot be used: {error}; checkpoints are "
            "not touched by it, and the file may be removed",
            MettaWarning,
            stacklevel=2,
        )
        return {}


def _scores_in(data: Any) -> dict[int, LateScore]:
    """The content of a file; ValueError if it is of another kind."""
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError("it is not a file of late scores")
    if data.get("format_version") != _FORMAT_VERSION:
        raise ValueError(f"it has version {brief(data.get('format_version'))}")
    if "sha256" in data and data != sealed(data):  # files of older versions have none
        raise ValueError("its content is not what was written (sha256 differs)")
    scores = data.get("scores")
    if not isinstance(scores, dict):
        raise ValueError("its scores are not a mapping")
    found: dict[int, LateScore] = {}
    for epoch, value in scores.items():
        late = _late_score(value)
        is_epoch = epoch.isascii() and epoch.isdigit() and len(epoch) <= _MAX_DIGITS
        if late is None or not is_epoch:
            raise ValueError(f"epoch {brief(epoch)} has the score {brief(value)}")
        found[int(epoch)] = late
    return found


def _late_score(value: Any) -> LateScore | None:
    """A score and how low it may be, from a file."""
    if not isinstance(value, list) or len(value) != len(LateScore._fields):
        return None
    score, lower_bound = (score_of({"score": number}) for number in value)
    if score is None or (lower_bound is None and value[1] is not None):
        return None
    return LateScore(score, lower_bound)


def with_late_scores(
    checkpoint_dir: str | os.PathLike[str], entries: Sequence[CheckpointEntry]
) -> list[CheckpointEntry]:
    """Entries of a folder; those without a score get the late one."""
    if all(entry.score is not None for entry in entries):
        return list(entries)
    late = read_late_scores(checkpoint_dir)
    return [
        dataclasses.replace(entry, metadata={**entry.metadata, **late[entry.epoch]._asdict()})
        if entry.score is None and entry.epoch in late
        else entry
        for entry in entries
    ]
