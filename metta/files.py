"""Files that are either whole or absent."""

import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

__all__ = ["atomic_write", "make_durable", "sha256_of"]


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary file beside `path`, make it durable, then rename it into place.

    A crash leaves the old file or the new one, never half of either; a failed `write` leaves nothing.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".tmp-{uuid.uuid4().hex}-{target.name}")
    try:
        write(temporary)
        make_durable(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    make_durable(target.parent)
    return target


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Hex digest of a file's bytes, read in blocks."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def make_durable(path: str | os.PathLike[str]) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
