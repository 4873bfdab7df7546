"""A file that grows by whole lines only."""

import errno
import itertools
import os
import stat
from pathlib import Path

from metta.errors import UnsafeFileError
from metta.files import make_durable, remove_file, rename, temporary_beside

__all__ = ["AppendFile"]

_BLOCK = 1 << 16
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class AppendFile:
    """Opens a file for appending, and cuts off a last line that a crash left unfinished.

    `append` hands the bytes to the operating system at once: they survive a crash of this process,
    and after `sync` a crash of the machine. An `append` that fails leaves no part of the line behind.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor: int | None = _open_regular(path)
        folder = path.parent.stat()
        self._folder = folder.st_dev, folder.st_ino
        self.size = self._line_begin(os.fstat(self._descriptor).st_size)
        """Bytes of whole lines."""
        os.ftruncate(self._descriptor, self.size)

    def _line_begin(self, end: int) -> int:
        """Where the line that contains a place begins: after the last line end before it."""
        while end > 0:
            begin = max(0, end - _BLOCK)
            newline = os.pread(self._open, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    def last_line(self) -> bytes:
        """The last line with its end; empty if the file has none."""
        begin = self._line_begin(self.size - 1)
        return os.pread(self._open, self.size - begin, begin)

    def append(self, lines: bytes, at: int | None = None) -> int:
        """Write whole lines, all of them or, if it raises `OSError`, none; returns where they end.

        `at` is where they begin (default: the end of the file), so that a write that was interrupted can
        be repeated.
        """
        begin = self.size if at is None else at
        rest, place = memoryview(lines), begin
        try:
            while rest:
                written = os.pwrite(self._open, rest, place)
                rest, place = rest[written:], place + written
        except OSError:
            os.ftruncate(self._open, begin)
            raise
        self.size = place
        return place

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._open)

    def is_in_place(self) -> bool:
        """Whether the file's name still refers to it, or to a file of the same size and end.

        Some mounts report another inode number each time, so a different number alone proves nothing: the
        file that has the name is opened, and lines are appended to it from then on.
        """
        try:
            named = self.path.lstat()
        except OSError:
            return False
        own = os.fstat(self._open)
        if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino):
            return True
        return self._open_again()

    def _open_again(self) -> bool:
        """Open what has the file's name now; False if it is missing or differs."""
        try:
            named = os.open(self.path, _FLAGS & ~os.O_CREAT)
        except OSError:
            return False
        unused = named
        try:
            if _end_of(named) != _end_of(self._open):
                return False
            os.fsync(named)  # it may be a copy that was just made
            make_durable(self.path.parent)
            unused, self._descriptor = self._open, named
            return True
        finally:
            os.close(unused)

    def has_its_folder(self) -> bool:
        """Whether the folder is still the one that the file was opened in."""
        try:
            now = self.path.parent.stat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self._folder

    def put_back(self) -> Path | None:
        """Write a file that lost its name again, in full; what has the name now is renamed and returned."""
        aside = None
        if os.path.lexists(self.path):
            names = (self.path.with_name(f"{self.path.name}.found-{n}") for n in itertools.count(1))
            aside = next(name for name in names if not os.path.lexists(name))
            rename(self.path, aside)
        temporary = temporary_beside(self.path)
        copy = _open_regular(temporary)
        try:
            place = 0
            while block := os.pread(self._open, min(_BLOCK * 16, self.size - place), place):
                place += os.write(copy, block)
            os.fsync(copy)
            rename(temporary, self.path)
        except BaseException:
            os.close(copy)
            remove_file(temporary)
            raise
        os.close(self._open)
        self._descriptor = copy
        make_durable(self.path.parent)
        return aside

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _open(self) -> int:
        assert self._descriptor is not None, f"{self.path} is closed"
        return self._descriptor


def _end_of(descriptor: int) -> tuple[int, int, bytes]:
    """Kind, size and last bytes of a file; the last checksum of an event log covers all lines before it."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        return stat.S_IFMT(about.st_mode), 0, b""
    begin = max(0, about.st_size - _BLOCK)
    return stat.S_IFREG, about.st_size, os.pread(descriptor, _BLOCK, begin)


def _open_regular(path: Path) -> int:
    try:
        descriptor = os.open(path, _FLAGS, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFileError(
                f"{str(path)!r} is a symbolic link; use a regular file"
            ) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFileError(f"{str(path)!r} is not a regular file")
    return descriptor
