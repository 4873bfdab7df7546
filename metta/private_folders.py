"""Folders that no other user can write to: metta's cache, and scratch folders inside it.

A scratch folder belongs to a process that holds its lock. If the process was killed, the next one that uses
scratch folders, or trains, removes what it left.
"""

import contextlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from metta.errors import UnsafeFileError
from metta.file_locks import acquire_lock

__all__ = ["ScratchFolder", "cache_root", "private_folder", "sweep_scratch", "temporary_folder"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_MAX_LINKS = 40
_ADVICE = "or set METTA_CACHE_DIR to another folder"


def cache_root() -> Path:
    """Metta's own folder: ``$METTA_CACHE_DIR``, or ``metta`` in the user's cache folder."""
    chosen = os.environ.get("METTA_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "metta"


def private_folder(name: str) -> Path:
    """A folder below `cache_root`, created if it is missing.

    `UnsafeFileError` if it cannot be created, or if another user could write into it, or put another
    folder in its place.
    """
    try:
        folder = cache_root() / name
        _make(folder)
        _refuse_others(folder)
        found = folder.lstat()
    except (OSError, RuntimeError) as error:  # the user may have no home folder
        raise UnsafeFileError(
            f"metta's cache is a folder that cannot be made ({error}); set METTA_CACHE_DIR to one of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFileError(f"{str(folder)!r} must be a folder, not a link; remove it, {_ADVICE}")
    if found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        raise _unsafe(folder, folder, "others can write into it", "make it yours (chmod 700)")
    return folder


def _make(folder: Path) -> None:
    """Create it and the missing folders above it, whatever the umask is."""
    for place in [*reversed(folder.parents), folder]:
        with contextlib.suppress(FileExistsError):
            if not os.path.lexists(place):
                place.mkdir(mode=0o700)
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is not a folder")


def _refuse_others(folder: Path, depth: int = 0) -> None:
    """Check every folder and link on the way, as the operating system follows them."""
    for place in [*reversed(folder.parents), folder]:
        found = place.lstat()
        if found.st_uid not in (0, os.getuid()):
            raise _unsafe(folder, place, f"belongs to user {found.st_uid}", "choose another place")
        if stat.S_ISLNK(found.st_mode):
            if depth < _MAX_LINKS:
                _refuse_others(place.parent / place.readlink(), depth + 1)
        elif found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise _unsafe(folder, place, "others can write into it", f"chmod go-w {place}")
        elif found.st_uid == os.getuid() and not found.st_mode & _OTHERS_ENTER:
            return  # no other user gets further


def _unsafe(folder: Path, place: Path, why: str, remedy: str) -> UnsafeFileError:
    where = f"{str(folder)!r}" if place == folder else f"{str(folder)!r}, below {str(place)!r}"
    return UnsafeFileError(
        f"metta keeps code and weights in {where}, but {why}; {remedy}, {_ADVICE}"
    )


class ScratchFolder:
    """A new private folder, removed with its content when it is closed.

        with ScratchFolder("compile") as scratch:
            (scratch.path / "made.so").write_bytes(...)

    `UnsafeFileError` if `private_folder` refuses, `OSError` if nothing can be written.
    """

    def __init__(self, purpose: str) -> None:
        root = private_folder("scratch")
        sweep_scratch()
        self._owner = os.getpid()
        name = f"{purpose}-{uuid.uuid4().hex[:8]}"
        self._lock_file = root / f"{name}.lock"
        self._lock: int | None = None
        with contextlib.suppress(ImportError, OSError):  # without a lock it is not swept either
            # a sweep that found the file before it was locked is over in a moment
            self._lock = acquire_lock(self._lock_file, before_waiting=lambda: None)
        self.path = root / name
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it; may be called again. A forked child leaves it to its parent."""
        if os.getpid() != self._owner:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "ScratchFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A scratch folder or, if no private folder can be used, one in the system's temporary folder."""
    try:
        scratch = ScratchFolder(purpose)
    except (UnsafeFileError, OSError):
        with tempfile.TemporaryDirectory(
            prefix=f"metta-{purpose}-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
        return
    with scratch:
        yield scratch.path


def sweep_scratch() -> None:
    """Remove the scratch folders of processes that ended without doing so."""
    with contextlib.suppress(UnsafeFileError, OSError):
        if not (cache_root() / "scratch").is_dir():
            return
        for lock_file in private_folder("scratch").glob("*.lock"):
            with contextlib.suppress(ImportError, OSError):  # another process is using it
                lock = acquire_lock(lock_file)
                try:
                    _remove(lock_file.with_suffix(""))
                    lock_file.unlink(missing_ok=True)
                finally:
                    os.close(lock)


def _remove(folder: Path) -> None:
    """Links are not followed; what cannot be removed stays, with its lock file, for the next time."""
    if os.path.lexists(folder):
        shutil.rmtree(folder)
