"""Whole lines of an event log, from any place on."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.database.event_rows import EventRows, rows_of
from metta.errors import EventLogError
from metta.loggers.events.lines import MAX_LINE_BYTES, Event, parse_event
from metta.loggers.events.reader import bad_line, lines_backwards, lines_from, open_log

__all__ = ["LogBatch", "LogReader", "Place"]

_TAIL_BYTES = 1024
_MAX_LINES = 500
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Place:
    """A place in a log: the lines before it were read."""

    bytes_read: int = 0
    lines_read: int = 0
    tail: str = ""
    """Digest of the last bytes before it."""


@dataclass(frozen=True)
class LogBatch:
    """Some events, and the place after them."""

    events: list[EventRows]
    end: Place
    error: EventLogError | None = None
    """Why the next line cannot be read."""


class LogReader:
    """Reads a log that may be growing.

    with LogReader(path) as log:
        batch = log.read(Place())
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._opened = contextlib.ExitStack()
        self._file, _ = self._opened.enter_context(open_log(self.path))

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def identity(self) -> str | None:
        """Digest of the first line, which has the run's id and a time; None if the log has none yet."""
        self._file.seek(0)
        line = self._file.readline(MAX_LINE_BYTES)
        return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") else None

    def has(self, place: Place) -> bool:
        """Whether the file reaches this place, and is the same before it."""
        return self.size() >= place.bytes_read and self._tail(place.bytes_read) == place.tail

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def last_event(self) -> Event | None:
        """The last event of a whole line, read from the end; None if that is not an event."""
        for _, line in lines_backwards(self._file, self.size(), self.path):
            try:
                return _parse(line).event
            except ValueError:
                return None
        return None

    def read(self, place: Place) -> LogBatch:
        """The next events; an unfinished last line is left for the next call."""
        events: list[EventRows] = []
        reached, error = place.bytes_read, None
        for begin, line in lines_from(self._file, place.bytes_read, self.path):
            if len(events) >= _MAX_LINES or begin - place.bytes_read >= _MAX_BYTES:
                break
            try:
                events.append(_parse(line))
            except ValueError as reason:
                number = place.lines_read + len(events) + 1
                found = bad_line(self.path, f"line {number}", line, reason)
                error = EventLogError(f"{found}; fix or remove the line, and ingest the log again")
                break
            reached = begin + len(line)
        end = Place(reached, place.lines_read + len(events), self._tail(reached))
        return LogBatch(events, end, error)

    def _tail(self, end: int) -> str:
        begin = max(0, end - _TAIL_BYTES)
        self._file.seek(begin)
        return hashlib.sha256(self._file.read(end - begin)).hexdigest()


def _parse(line: bytes) -> EventRows:
    """An event's rows; a line that is wrong in any way is a `ValueError`."""
    event = parse_event(line)
    if b"\\u0000" in line or b"\\ud" in line.lower():
        event = Event(**_cleaned(vars(event)))
    return rows_of(event)


def _cleaned(value: Any) -> Any:
    """Without characters that databases cannot hold: zeros, and halves of pairs."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode().replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    return [_cleaned(part) for part in value] if isinstance(value, list) else value
