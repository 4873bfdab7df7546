"""Reading event logs, from the beginning or backwards from the end."""

import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from metta.errors import EventLogError, MettaWarning
from metta.loggers.events.lines import (
    MAX_LINE_BYTES,
    Event,
    follows,
    has_check,
    link_of,
    parse_event,
)
from metta.secrets import scrub
from metta.untrusted.files import open_regular

__all__ = [
    "ChainCheck",
    "bad_line",
    "lines_backwards",
    "lines_from",
    "open_log",
    "placed_events",
    "read_events",
]

_BLOCK = 1 << 16
_MAX_BLOCK = 1 << 20


@contextmanager
def open_log(path: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, int]]:
    """A log and its size; links, pipes and devices are refused."""
    with open_regular(path, follow_symlink=False) as opened:
        yield opened


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Events in order; a last line without an end, of a crash or of a running writer, is left out.

    A line that is not an event is an `EventLogError`. Lines that were changed, removed or swapped after
    they were written are a `MettaWarning`, one for each log.
    """
    for _, event in placed_events(path):
        yield event


def placed_events(
    path: str | os.PathLike[str], kinds: Collection[str] | None = None
) -> Iterator[tuple[int, Event]]:
    """`read_events`, each with its place; lines of other `kinds` are checked, but not parsed."""
    check, is_first = ChainCheck(), True
    names = None if kinds is None else [f'"{kind}"'.encode() for kind in kinds]
    with open_log(path) as (stream, _):
        for number, (place, line) in enumerate(lines_from(stream, 0, path), 1):
            event = None
            if names is None or not has_check(line) or any(name in line for name in names):
                try:
                    event = parse_event(line)
                except ValueError as reason:
                    raise bad_line(path, f"line {number}", line, reason) from reason
            problem = check.add(line, event)
            if problem and is_first:
                is_first = False
                text = f"{os.fspath(path)} is damaged: at line {number} {problem}"
                warnings.warn(text, MettaWarning, stacklevel=3)
            if event is not None and (kinds is None or event.kind in kinds):
                yield place, event


def bad_line(
    path: str | os.PathLike[str], place: str, line: bytes, reason: Exception
) -> EventLogError:
    """The error to raise for a line that is not an event."""
    return EventLogError(
        f"{place} of {os.fspath(path)!r} is not an event: {reason}: {scrub(repr(line[:80]))}"
    )


class ChainCheck:
    """Checks of each line, in order, whether it follows the one before it."""

    def __init__(self, link: int | None = 0) -> None:
        self._link = link
        """Of the line before; None if that is not known."""
        self._sequence: int | None = None if link is None else 0

    def add(self, line: bytes, event: Event | None = None) -> str:
        """What is wrong with the next line, or an empty text; a line with a checksum needs no `event`."""
        problem = ""
        if self._link is not None and not follows(line, self._link):
            problem = "the line was changed, or lines before it were changed, removed or swapped"
        self._link = link_of(line)
        if event is None:
            self._sequence = None
            return problem
        before, self._sequence = self._sequence, event.sequence
        if before is not None and event.sequence != before + 1 and not has_check(line):
            problem = f"event {event.sequence} follows event {before}"
        return problem


def lines_from(
    stream: BinaryIO, begin: int, path: str | os.PathLike[str]
) -> Iterator[tuple[int, bytes]]:
    """Whole lines from a place on, each with its place; `EventLogError` for one that is too long."""
    stream.seek(begin)
    place = begin
    while line := stream.readline(MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            if len(line) == MAX_LINE_BYTES:
                raise _too_long(path, place)
            return
        yield place, line
        place += len(line)


def lines_backwards(
    stream: BinaryIO, end: int, path: str | os.PathLike[str]
) -> Iterator[tuple[int, bytes]]:
    """Whole lines from a place back to the beginning, each with its place."""
    begin, rest, block_size, is_whole = end, b"", _BLOCK, False
    while begin > 0:
        size = min(block_size, begin)
        begin -= size
        stream.seek(begin)
        lines = (stream.read(size) + rest).split(b"\n")
        if len(lines[0]) > MAX_LINE_BYTES:
            raise _too_long(path, begin)
        place = begin + sum(map(len, lines)) + len(lines) - 1
        for line in reversed(lines[1:]):
            place -= len(line)
            if is_whole:
                yield place, line + b"\n"
            is_whole = True  # what follows the last line end is not whole
            place -= 1
        rest, block_size = lines[0], min(2 * block_size, _MAX_BLOCK)
    if is_whole:
        yield 0, rest + b"\n"


def _too_long(path: str | os.PathLike[str], place: int) -> EventLogError:
    return EventLogError(
        f"{os.fspath(path)!r} has a line of more than {MAX_LINE_BYTES:,} bytes at byte {place:,}; that is "
        "not an event log of metta"
    )
