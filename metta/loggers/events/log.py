"""The event log: what happened in a run, one JSON object per line. All other files follow it."""

import os
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from metta.errors import EventLogError, MettaWarning, RunRemovedError
from metta.loggers.events.append_file import AppendFile
from metta.loggers.events.lines import Event, event_line, link_of, parse_event, whole_number
from metta.loggers.events.reader import bad_line, lines_backwards, open_log, read_events

__all__ = ["Event", "EventLog", "LogMark", "read_events"]

_DURABLE = frozenset({"run_end"})


@dataclass(frozen=True)
class LogMark:
    """How far a log had got at some moment, as a checkpoint keeps it."""

    run: str
    sequence: int
    """Number of the last event."""
    size: int
    """Bytes."""
    link: int
    """Of the last line, and through it of all lines."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Any) -> "LogMark | None":
        """The mark that `to_dict` wrote; None if this is something else, as in older checkpoints."""
        if not isinstance(found, dict) or not isinstance(found.get("run"), str):
            return None
        try:
            numbers = [whole_number(found.get(name), name) for name in ("sequence", "size", "link")]
        except ValueError:
            return None
        return cls(found["run"], *numbers)


class _Tail(NamedTuple):
    """Where the log ends. Replaced as a whole, so that an interrupt leaves the old one or the new one."""

    sequence: int
    link: int
    size: int
    """Bytes that were written."""
    waiting: tuple[bytes, ...] = ()
    """Lines that come after them."""


class EventLog:
    """Appends events to a file; the numbers continue where an existing file ends.

        with EventLog(run_dir / "events.jsonl") as log:
            log.append("metrics", {"epoch": 1, "agent_step": 64, "metrics": {"loss": 0.5}})

    Each event is handed to the operating system at once, and `run_end` to the disk. A disk that fails
    does not stop a run: events wait in memory, a warning reports it, and the next event tries again.
    May be used from several threads, by one process at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        mark: LogMark | None = None,
    ) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._failing = False
        self._file: AppendFile | None = AppendFile(self.path)
        last = self._last_event(self._file)
        self.damage = [] if mark is None else self._compare(mark, last)
        """How the file differs from what it was when `mark` was taken."""
        self.is_as_marked = mark is not None and not self.damage
        """Whether the log still has everything it had when `mark` was taken."""
        known = last or mark
        self.run_id = run_id or (uuid.uuid4().hex if known is None else known.run)
        """Of the run whose events are written now."""
        # a log that lost its end does not reuse numbers: databases may have those events
        sequence = max(last.sequence if last else 0, mark.sequence if mark else 0)
        line = self._file.last_line()
        self._tail = _Tail(sequence, link_of(line) if line else 0, self._file.size)

    @property
    def sequence(self) -> int:
        """Number of the last event."""
        return self._tail.sequence

    def _last_event(self, file: AppendFile) -> Event | None:
        line = file.last_line()
        if not line:
            return None
        try:
            return parse_event(line)
        except ValueError as reason:
            file.close()
            error = bad_line(self.path, "the last line", line, reason)
            raise EventLogError(f"{error}; move the file away to begin a new log") from reason

    def _compare(self, mark: LogMark, last: Event | None) -> list[str]:
        assert self._file is not None
        if last is None:
            return [f"it is missing or empty, and had {mark.sequence:,} events"]
        if last.run != mark.run:
            self._file.close()
            raise EventLogError(
                f"{str(self.path)!r} is the log of another run, {last.run!r}; this run is {mark.run!r}. "
                "Put its own log back, or move this one away: then the run continues with a new log"
            )
        if self._file.size < mark.size:
            return [
                f"it ends with event {last.sequence:,} at byte {self._file.size:,}; when the checkpoint "
                f"was saved it had {mark.sequence:,} events and {mark.size:,} bytes"
            ]
        with open_log(self.path) as (stream, _):
            place, line = next(lines_backwards(stream, mark.size, self.path), (0, b""))
        if link_of(line) != mark.link or place + len(line) != mark.size:
            return [
                f"its first {mark.size:,} bytes are not those that it had when the checkpoint was saved: "
                "lines were changed, added or removed"
            ]
        return []

    def append(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Write an event; returns its number."""
        with self._lock:
            tail, number = self._tail, self._tail.sequence + 1
            event = {
                "run": self.run_id,
                "sequence": number,
                "time": time.time(),
                "kind": kind,
                "payload": payload,
            }
            try:
                line = event_line(event, tail.link)
            except ValueError as reason:
                raise EventLogError(f"an event {kind!r} cannot be logged: {reason}") from reason
            self._tail = _Tail(number, link_of(line), tail.size, (*tail.waiting, line))
            news = self._write(sync=kind in _DURABLE)
        if news:  # outside of the lock: code that shows the warning may log
            warnings.warn(news, MettaWarning, stacklevel=2)
        return number

    def _write(self, *, sync: bool) -> str:
        """Write the events that wait; returns a message, or an empty text."""
        try:
            if self._file is None:
                self._file = AppendFile(self.path)
            tail = self._tail
            if tail.waiting:
                at = min(tail.size, self._file.size)  # less if the file was removed meanwhile
                end = self._file.append(b"".join(tail.waiting), at)
                self._tail = tail._replace(size=end, waiting=())
            if sync:
                self._file.sync()
        except OSError as error:
            was_failing, self._failing = self._failing, True
            return "" if was_failing else (
                f"cannot write {self.path}: {error}; events wait in memory until it works again"
            )  # fmt: skip
        recovered, self._failing = self._failing, False
        return f"{self.path} is written again, and complete" if recovered else ""

    def sync(self) -> LogMark | None:
        """Bring everything to the disk; returns how far the file has got, or None if that failed.

        A file that was removed or replaced meanwhile is written again, in full. `RunRemovedError` if its
        folder is gone.
        """
        with self._lock:
            news = [self._write(sync=True), self._put_back()]
            size = 0 if self._file is None else self._file.size
            mark = LogMark(self.run_id, self.sequence, size, self._tail.link)
            is_there = not self._failing
        for text in filter(None, news):
            warnings.warn(text, MettaWarning, stacklevel=2)
        return mark if is_there else None

    def _put_back(self) -> str:
        """Restore the file's name if it has lost it; returns a message, or an empty text."""
        file = self._file
        try:
            if file is None or file.is_in_place():
                return ""
            if not file.has_its_folder():
                raise RunRemovedError(
                    f"the folder {str(self.path.parent)!r} was removed or renamed while a run used it; "
                    "training stops"
                )
            aside = file.put_back()
        except OSError as error:
            self._failing = True
            return f"{self.path} was removed or replaced, and cannot be written again: {error}"
        other = "" if aside is None else f"; what was found in its place is now {aside}"
        return f"{self.path} was removed or replaced; it is written again, and complete{other}"

    def close(self) -> None:
        """Bring everything to the disk and close the file; another event opens it again."""
        with self._lock:
            if self._file is None and not self._tail.waiting:
                return
            news = self._write(sync=True)
            if self._tail.waiting:
                news = f"{len(self._tail.waiting)} events could not be written to {self.path}"
            if self._file is not None:
                try:
                    news = news or self._put_back()
                except RunRemovedError as error:
                    news = str(error)
                self._file.close()
                self._file = None
        if news:
            warnings.warn(news, MettaWarning, stacklevel=2)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
