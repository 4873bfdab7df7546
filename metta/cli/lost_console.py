"""A closed terminal, or a pipe whose reader has ended, does not end a command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

__all__ = ["tolerate_lost_console"]


class _Tolerant:
    """A stream that discards what is written to it once its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._discard_output()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._discard_output()

    def _discard_output(self) -> None:
        """Discard what is written from now on, and what is still buffered."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def tolerate_lost_console() -> Iterator[None]:
    """Inside, writes to stdout and stderr never fail: once they cannot be written, output is discarded.

    A standard stream that is closed already is replaced by the null device: otherwise the next file to be
    opened would get its number, and receive what is printed.
    """
    _fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        streams = [_Tolerant(stream or nowhere) for stream in before]  # None: closed at the start
        sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in streams)
        try:
            yield
        finally:
            for stream in streams:
                stream.flush()  # buffered output would fail at the end of the process
            sys.stdout, sys.stderr = before


def _fill_closed_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the smallest free number, which is this one
