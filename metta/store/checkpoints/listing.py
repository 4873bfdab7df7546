"""Listing and reading what a trainer may remove meanwhile."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from metta.errors import CheckpointError, MettaError

__all__ = ["MAX_LISTINGS", "VanishedError", "listing_anew", "reading"]

MAX_LISTINGS = 100
"""How often a folder is listed where what was found vanishes each time."""

Found = TypeVar("Found")


class VanishedError(CheckpointError):
    """What was listed is not there any more: a trainer removed it, for a newer one."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell what vanished from what is damaged: an error is a `VanishedError` where `path` is gone.

    A trainer gives a checkpoint another name before it removes the files in it: where the name is still
    there, so are the files.
    """
    try:
        yield
    except (MettaError, OSError) as error:
        if os.path.lexists(path):
            raise
        raise VanishedError(f"{str(path)!r} was removed while it was read") from error


def listing_anew(find_and_read: Callable[[], Found]) -> Found:
    """The result of a function that lists and reads; it is called again where what it lists vanishes.

    A trainer removes a checkpoint only after it has written a newer one, so the next listing finds that.
    """
    for _ in range(MAX_LISTINGS - 1):
        try:
            return find_and_read()
        except VanishedError:
            continue
    return find_and_read()
