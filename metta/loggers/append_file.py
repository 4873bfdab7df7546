"""A file of lines that grows by whole lines only."""

import os
from pathlib import Path

__all__ = ["AppendFile"]

_BLOCK = 1 << 16


class AppendFile:
    """Opens a file for appending, and cuts off a last line that a crash left unfinished.

    `append` hands the bytes to the system at once: they survive the death of this process, and after
    `sync` that of the machine. An `append` that fails leaves no part of the line behind.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = self._whole_size()
        """Bytes of whole lines."""
        os.ftruncate(self._descriptor, self.size)
        os.lseek(self._descriptor, self.size, os.SEEK_SET)

    def _whole_size(self) -> int:
        """Bytes up to and with the last line end."""
        end = os.fstat(self._open).st_size
        while end > 0:
            begin = max(0, end - _BLOCK)
            newline = os.pread(self._open, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    def last_line(self) -> bytes:
        """The last line without its end; empty where there is none."""
        end = max(self.size - 1, 0)
        line = b""
        while end > 0:
            begin = max(0, end - _BLOCK)
            block = os.pread(self._open, end - begin, begin)
            newline = block.rfind(b"\n")
            line = block[newline + 1 :] + line
            if newline >= 0:
                break
            end = begin
        return line

    def append(self, lines: bytes) -> None:
        """Write whole lines, all of them or, where it raises `OSError`, none."""
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._open, rest) :]
        except OSError:
            os.ftruncate(self._open, self.size)
            os.lseek(self._open, self.size, os.SEEK_SET)
            raise
        self.size += len(lines)

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._open)

    def close(self) -> None:
        """Let the file go; may be called more than once."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _open(self) -> int:
        assert self._descriptor is not None, f"{self.path} is closed"
        return self._descriptor
