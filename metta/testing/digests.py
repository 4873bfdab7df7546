"""Compares two runs: digests per epoch and component, and the first value that differs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from metta.rl.hooks.base import TrainerHook
from metta.rl.training_state import TrainerState
from metta.stateful import StateRegistry, digest_of

__all__ = ["NAMES_FILES", "DigestHook", "compare_digests", "first_difference", "read_digests"]

NAMES_FILES = "policy_tracker"
"""The one component that may differ between equal runs: it holds paths of saved policies."""


class DigestHook(TrainerHook):
    """Writes a digest of every component after each epoch, one JSON object per line.

        trainer.add_hook(DigestHook(run_dir / "digests.jsonl"))

    A line is written before the next epoch begins, so that a killed process leaves what it reached. In a
    run of several ranks they are digests of what the first one has.
    """

    order: ClassVar[int] = 99

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def on_epoch_end(self, trainer_state: TrainerState, registry: StateRegistry) -> None:
        """Add a line."""
        line = {"epoch": trainer_state.epoch, "digests": registry.digests()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_digests(path: str | os.PathLike[str]) -> dict[int, list[dict[str, str]]]:
    """Epoch -> the digests that were written for it, in order; a half-written last line is left out."""
    found: dict[int, list[dict[str, str]]] = {}
    for line in Path(path).read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            entry = json.loads(line)
            found.setdefault(int(entry["epoch"]), []).append(entry["digests"])
    return found


def compare_digests(
    expected: Mapping[int, Sequence[Mapping[str, str]]],
    found: Mapping[int, Sequence[Mapping[str, str]]],
) -> tuple[int, list[str]] | None:
    """The first epoch in which `found` differs from `expected`, and the components that do.

    None if everything is as expected. An epoch that was reached more than once, after kills, must be the
    same each time.
    """
    for epoch in sorted(found):
        reference = expected[epoch][0]
        wrong = {
            name
            for digests in found[epoch]
            for name in reference.keys() | digests.keys()
            if name != NAMES_FILES and digests.get(name) != reference.get(name)
        }
        if wrong:
            return epoch, sorted(wrong)
    return None


def first_difference(expected: Any, found: Any, path: str = "") -> str | None:
    """The path of the first value in which two trees of state differ, bit for bit; None: equal."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys([*expected, *found]):
            if (key in expected) != (key in found):
                return f"{path}/{key} (only in one of them)"
            deeper = first_difference(expected[key], found[key], f"{path}/{key}")
            if deeper is not None:
                return deeper
        return None
    both_lists = isinstance(expected, list | tuple) and isinstance(found, list | tuple)
    if both_lists and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            deeper = first_difference(*pair, f"{path}/{index}")
            if deeper is not None:
                return deeper
        return None
    return None if digest_of(expected) == digest_of(found) else f"{path} {_shown(expected, found)}"


def _shown(expected: Any, found: Any) -> str:
    if hasattr(expected, "shape") and getattr(found, "shape", None) == expected.shape:
        unequal = (expected != found).reshape(-1)
        places = [index for index, differs in enumerate(unequal.tolist()) if differs]
        return f"differs in {len(places)} of {unequal.shape[0]} elements, first in {places[:1]}"
    return f"is {str(found)[:60]!r} instead of {str(expected)[:60]!r}"
