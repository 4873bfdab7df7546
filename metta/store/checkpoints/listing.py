"""Listing and reading checkpoints that a trainer may remove meanwhile."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from metta.errors import CheckpointError, MettaError

__all__ = ["MAX_LISTINGS", "VanishedError", "listing_anew", "reading"]

MAX_LISTINGS = 100
"""How often a folder is listed if what was found vanishes each time."""

Found = TypeVar("Found")


class VanishedError(CheckpointError):
    """What was listed no longer exists: a trainer removed it after it wrote a newer one."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Distinguish what vanished from what is damaged: an error is a `VanishedError` if `path` is gone.

    A trainer renames a checkpoint before it removes the files in it: if the name still exists, so do the
    files.
    """
    try:
        yield
    except (MettaError, OSError) as error:
        if os.path.lexists(path):
            raise
        raise VanishedError(f"{str(path)!r} was removed while it was read") from error


def listing_anew(find_and_read: Callable[[], Found]) -> Found:
    """The result of a function that lists and reads; it is called again if what it lists vanishes.

    A trainer removes a checkpoint only after it has written a newer one, so the next listing finds that.
    """
    for _ in range(MAX_LISTINGS - 1):
        try:
            return find_and_read()
        except VanishedError:
            continue
    return find_and_read()
