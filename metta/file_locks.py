"""Lock files: a lock is released when the process that holds it ends, however it ends."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["acquire_lock", "hold_lock"]


@contextlib.contextmanager
def hold_lock(path: Path, before_waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold a lock file; False if another process has it.

    With `before_waiting`, it calls that and then waits for the other process. True if the operating system
    or the folder has no locks.
    """
    try:
        descriptor = acquire_lock(path, before_waiting)
    except BlockingIOError:
        yield False
        return
    except (ImportError, OSError):
        yield True
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def acquire_lock(path: Path, before_waiting: Callable[[], None] | None = None) -> int:
    """A descriptor that holds the lock until it is closed.

    `BlockingIOError` if another process has it and `before_waiting` is None; another `OSError`, or an
    `ImportError`, on systems without locks.
    """
    import fcntl  # not on every system

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if before_waiting is None:
                    raise
                before_waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_named(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether a file still has its name: locking one that was removed before protects nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
