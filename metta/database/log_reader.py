"""Whole lines of an event log, from any place on."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from metta.database.event_rows import EventRows, rows_of
from metta.errors import EventLogError
from metta.loggers.event_log import Event
from metta.secrets import scrub

__all__ = ["LogBatch", "LogReader", "Place"]

_TAIL_BYTES = 1024
_MOST_LINES = 500
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Place:
    """A place in a log: what stands before it was read."""

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
        self._file = self.path.open("rb")

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def identity(self) -> str | None:
        """Digest of the first line, which has the run's id and a time; None before there is one."""
        self._file.seek(0)
        line = self._file.readline()
        return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") else None

    def has(self, place: Place) -> bool:
        """Whether the file reaches to this place, and is the same before it."""
        return self.size() >= place.bytes_read and self._tail(place.bytes_read) == place.tail

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def last_event(self) -> Event | None:
        """The last event of a whole line, read from the end; None where that is no event."""
        end = self.size()
        begin = max(0, end - _MOST_BYTES)
        self._file.seek(begin)
        block = self._file.read(end - begin)
        whole = block[: block.rfind(b"\n") + 1].splitlines()
        try:
            return _parse(whole[-1]).event
        except (ValueError, IndexError):
            return None

    def read(self, place: Place) -> LogBatch:
        """The next events; a last line without an end waits for its rest."""
        self._file.seek(place.bytes_read)
        events: list[EventRows] = []
        reached, error = place.bytes_read, None
        while len(events) < _MOST_LINES and reached - place.bytes_read < _MOST_BYTES:
            line = self._file.readline()
            if not line.endswith(b"\n"):
                break
            try:
                events.append(_parse(line))
            except ValueError as reason:
                number = place.lines_read + len(events) + 1
                error = EventLogError(
                    f"line {number} of {str(self.path)!r} is no event: {reason}: "
                    f"{scrub(repr(line[:80]))}; mend or remove the line, and ingest the log again"
                )
                break
            reached += len(line)
        end = Place(reached, place.lines_read + len(events), self._tail(reached))
        return LogBatch(events, end, error)

    def _tail(self, end: int) -> str:
        begin = max(0, end - _TAIL_BYTES)
        self._file.seek(begin)
        return hashlib.sha256(self._file.read(end - begin)).hexdigest()


def _parse(line: bytes) -> EventRows:
    """An event's rows; every way in which a line can be wrong is a `ValueError`."""
    try:
        found = json.loads(line.decode(), parse_constant=_no_number)
        if b"\\u0000" in line or b"\\ud" in line.lower():
            found = _cleaned(found)
        return rows_of(Event(**found))
    except TypeError as error:
        raise ValueError("it has other fields than an event") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_number(_: str) -> None:
    """NaN and infinity, which JSON does not have."""


def _cleaned(value: Any) -> Any:
    """Without characters that databases cannot hold: zeros, and halves of pairs."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode().replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    return [_cleaned(part) for part in value] if isinstance(value, list) else value
