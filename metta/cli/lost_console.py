"""A terminal that is closed and a pipe whose reader is gone never end a command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

__all__ = ["surviving_a_lost_console"]


class _Survivor:
    """A stream that falls silent when nobody can read it any more; otherwise it is the stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._fall_silent()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._fall_silent()

    def _fall_silent(self) -> None:
        """Send what is written from now on nowhere, and with it what waits in the stream's memory."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def surviving_a_lost_console() -> Iterator[None]:
    """What is printed inside goes to stdout and stderr for as long as they can be written to.

    Where one of the three standard streams is closed already, it becomes one that goes nowhere: the next
    file to be opened would have its number, and receive what others print.
    """
    _fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        survivors = [_Survivor(stream or nowhere) for stream in before]  # None: closed at the start
        sys.stdout, sys.stderr = (cast(TextIO, survivor) for survivor in survivors)
        try:
            yield
        finally:
            for survivor in survivors:
                survivor.flush()  # the end of the process would fail at what waits to be written
            sys.stdout, sys.stderr = before


def _fill_closed_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the smallest free number, which is this one
