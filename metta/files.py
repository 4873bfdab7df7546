"""Files and folders that are whole or absent, also after a crash or a loss of power.

What must not be lost is written through these functions only. Each waits for the disk where the next step
relies on it, and an operation that fails is an OSError.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = [
    "TEMPORARY",
    "atomic_write",
    "atomic_write_text",
    "commit_folder",
    "make_durable",
    "make_folder",
    "make_folders",
    "remove_file",
    "remove_folders",
    "remove_tree",
    "rename",
    "sha256_of",
    "temporary_beside",
    "temporary_folders",
    "write_durably",
]

TEMPORARY = ".tmp-"
"""Prefix of the names of files and folders that are being written or removed."""

_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that cannot sync a folder."""


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, make it durable, then rename it into place.

    A crash leaves the old file or the new one, never half of either; a failed `write` leaves nothing.
    """
    target = Path(path)
    make_folders(target.parent)
    temporary = temporary_beside(target)
    try:
        write_durably(temporary, write)
        rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):  # report the first error
            remove_file(temporary)
        raise
    make_durable(target.parent)
    return target


def atomic_write_text(path: str | os.PathLike[str], text: str) -> Path:
    """`atomic_write` of a whole text, in UTF-8."""

    def write(target: Path) -> None:
        target.write_bytes(text.encode("utf-8", "backslashreplace"))

    return atomic_write(path, write)


def commit_folder(
    free_path: Callable[[], Path],
    fill: Callable[[Path], None],
    verify: Callable[[Path], object],
    owner: str | None = None,
) -> Path:
    """Let `fill` make a folder beside its place, rename it to a name that is free, and `verify` it there.

    `fill` writes by `write_durably`. A crash leaves the whole folder or none of that name; a failure, also
    of `verify`, leaves none. What a crash leaves is among the `temporary_folders` of the `owner`.
    """
    temporary = temporary_beside(free_path(), owner)
    make_folders(temporary.parent)
    try:
        make_folder(temporary)
        fill(temporary)
        make_durable(temporary)
        target = _rename_to_free(temporary, free_path)
    except BaseException:
        with contextlib.suppress(OSError):  # report the first error
            remove_tree(temporary)
        raise
    try:
        make_durable(target.parent)
        verify(target)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_folders([target], owner)
        raise
    return target


def _rename_to_free(finished: Path, free_path: Callable[[], Path]) -> Path:
    while True:
        target = free_path()
        try:
            rename(finished, target)
        except OSError:
            if not os.path.lexists(target):
                raise
        else:  # if another process took the name meanwhile, the next one is tried
            return target


def temporary_beside(path: Path, owner: str | None = None) -> Path:
    """A new name in the same folder, which no pattern for finished files matches.

    It begins with the `owner`, if one is given: ``.tmp-<owner>-<unique>``.
    """
    return path.with_name(f"{_temporary_of(owner)}-{uuid.uuid4().hex}")


def temporary_folders(folder: Path, owner: str | None) -> list[Path]:
    """Folders that the owner (None: any without a name) began to write or to remove; no links."""
    inside = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in inside if path.name.rpartition("-")[0] == _temporary_of(owner)]
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def _temporary_of(owner: str | None) -> str:
    return TEMPORARY.rstrip("-") if owner is None else f"{TEMPORARY}{owner}"


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file, and wait until its bytes are on the disk; its name may not be yet."""
    write(path)
    make_durable(path)


def make_durable(path: str | os.PathLike[str]) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not (is_folder and error.errno in _CANNOT_SYNC_FOLDERS):
            raise
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Create a folder and those above it that are missing, each durable before the next is made."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        make_folder(path)
    make_durable(path.parent)


def make_folder(path: Path) -> None:
    """Create one folder, which must not exist."""
    path.mkdir()


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name in the same folder; both names change in one step.

    A file in the place of `target` is replaced, and so is an empty folder; any other folder is an OSError.
    """
    source.rename(target)


def remove_file(path: Path) -> None:
    """Remove a file, if it exists."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that it holds, in no particular order."""
    shutil.rmtree(path)


def remove_folders(paths: Iterable[Path], owner: str | None = None) -> None:
    """Remove folders so that, whatever happens, each is whole or has lost its name.

    All lose their names first; when that is on the disk, their contents are removed. If a folder cannot be
    emptied, the others are still removed, and an OSError is raised at the end. What a crash leaves is among
    the `temporary_folders` of the `owner`.
    """
    hidden = [_hide(path, owner) for path in paths]
    for parent in {path.parent for path in hidden}:
        make_durable(parent)
    failures: list[OSError] = []
    for path in hidden:
        try:
            remove_tree(path)
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _hide(path: Path, owner: str | None) -> Path:
    if path.name.startswith(TEMPORARY):
        return path
    hidden = temporary_beside(path, owner)
    rename(path, hidden)
    return hidden


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Hex digest of a file's bytes, read in blocks."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
