"""The event log: what happened in a run, one JSON object per line. It is the local truth."""

import json
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.errors import MettaError, MettaWarning
from metta.loggers.append_file import AppendFile
from metta.loggers.plain_json import to_json

__all__ = ["Event", "EventLog", "read_events"]

_DURABLE = frozenset({"run_end"})


@dataclass(frozen=True)
class Event:
    """One line of the log; (run, sequence) names it for good."""

    run: str
    sequence: int
    time: float
    """Seconds since 1970."""
    kind: str
    payload: dict[str, Any]


class EventLog:
    """Appends events to a file; the numbers go on where an existing file ends.

        with EventLog(run_dir / "events.jsonl") as log:
            log.append("metrics", {"epoch": 1, "agent_step": 64, "metrics": {"loss": 0.5}})

    Each event is handed to the system at once, and `run_end` to the disk. A disk that fails does not
    stop a run: events wait in memory, a warning tells of it, and the next event tries again. May be
    used from several threads, by one process at a time.
    """

    def __init__(self, path: str | os.PathLike[str], run_id: str | None = None) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._failing = False
        self._file: AppendFile | None = AppendFile(self.path)
        last = self._last_event(self._file)
        self.run_id = run_id or (last.run if last else uuid.uuid4().hex)
        """Of the run whose events are written now."""
        self.sequence = last.sequence if last else 0
        """Number of the last event."""

    def _last_event(self, file: AppendFile) -> Event | None:
        line = file.last_line()
        if not line:
            return None
        event = _parse(line)
        if event is None:
            file.close()
            raise MettaError(
                f"the last line of {self.path} is no event: {line[:80]!r}; move the file away to "
                "begin a new log"
            )
        return event

    def append(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Write an event; returns its number."""
        with self._lock:
            self.sequence += 1
            event = {
                "run": self.run_id,
                "sequence": self.sequence,
                "time": time.time(),
                "kind": kind,
                "payload": payload,
            }
            self._waiting.append(to_json(event))
            number = self.sequence
            news = self._write(sync=kind in _DURABLE)
        if news:  # outside of the lock: whoever shows the warning may log
            warnings.warn(news, MettaWarning, stacklevel=2)
        return number

    def _write(self, *, sync: bool) -> str:
        """Write what waits; returns what there is to tell."""
        try:
            if self._file is None:
                self._file = AppendFile(self.path)
            if self._waiting:
                self._file.append("".join(f"{line}\n" for line in self._waiting).encode())
            self._waiting.clear()
            if sync:
                self._file.sync()
        except OSError as error:
            was_failing, self._failing = self._failing, True
            return "" if was_failing else (
                f"cannot write {self.path}: {error}; events wait in memory until it works again"
            )  # fmt: skip
        recovered, self._failing = self._failing, False
        return f"{self.path} is written again, and complete" if recovered else ""

    def sync(self) -> bool:
        """Bring everything to the disk; returns whether it is there."""
        with self._lock:
            news = self._write(sync=True)
            is_there = not self._failing
        if news:
            warnings.warn(news, MettaWarning, stacklevel=2)
        return is_there

    def close(self) -> None:
        """Bring everything to the disk and let the file go; another event opens it again."""
        with self._lock:
            if self._file is None and not self._waiting:
                return
            news = self._write(sync=True)
            if self._waiting:
                news = f"{len(self._waiting)} events could not be written to {self.path}"
            if self._file is not None:
                self._file.close()
                self._file = None
        if news:
            warnings.warn(news, MettaWarning, stacklevel=2)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Events in order; a last line without an end, of a crash or of a writer at work, is left out."""
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            event = _parse(line)
            if event is None:
                raise MettaError(f"line {number} of {path} is no event: {line[:80]!r}")
            yield event


def _parse(line: bytes) -> Event | None:
    try:
        return Event(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
