"""The status of a run, read from the files it wrote."""

import datetime
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.errors import EventLogError, MettaError, UnsafeFileError
from metta.loggers.events.history import came_late, row_of, taken_back_to
from metta.loggers.events.lines import Event, parse_event
from metta.loggers.events.reader import bad_line, lines_backwards, open_log
from metta.loggers.sink import MetricRow
from metta.store.run_directory import RunDirectory
from metta.train.train_config import TrainingConfig
from metta.untrusted.json_files import read_json
from metta.untrusted.paths import safe_join

__all__ = [
    "SILENT_SECONDS",
    "UNREADABLE",
    "RunSummary",
    "last_score",
    "seconds_since",
    "shown_time",
    "summarize",
]

_OUTCOMES = ("done", "stopped", "failed")
SILENT_SECONDS = 600.0
"""A run on another host that wrote nothing for this long does not count as running."""
_SCORE = re.compile(r"eval_.*/score")
MAX_SCANNED_BYTES = 16 * 2**20
"""Bytes from the end of an event log in which the last score is searched."""
_WHOLE_BYTES = 1 << 16
"""Bytes from the end of an event log in which every line is read."""
_LOCKS = Path("/proc/locks")
_LOCK = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
"""A lock that is held; lines of processes that wait for it have an arrow before the kind."""
UNREADABLE = (
    MettaError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
)  # fmt: skip
"""Errors that files which metta did not write may raise."""


@dataclass
class RunSummary:
    """The status of a run."""

    name: str
    env: str
    status: str
    """`running`, `done`, `stopped`, `failed`, `died` if it ended without logging that, or `broken` if its
    files cannot be read; from a database also `silent`, if it did not end and logged nothing lately."""
    epoch: int
    agent_step: int
    total_timesteps: int
    """0 if it is not known."""
    reward: float | None
    """Mean return of the last 100 episodes."""
    score: float | None
    """Mean return of the last evaluation."""
    updated: str
    reason: str | None
    """Why it ended, or what is broken."""
    path: str
    """Of its folder; from a database, its id there."""


def summarize(folder: Path) -> RunSummary:
    """Read what a run wrote about itself; works while it runs, and for broken ones."""
    summary = RunSummary(
        name=folder.name,
        env="-",
        status="broken",
        epoch=0,
        agent_step=0,
        total_timesteps=0,
        reward=None,
        score=None,
        updated=_updated(folder),
        reason=None,
        path=str(folder),
    )
    try:
        config = TrainingConfig.from_yaml(safe_join(folder, "config.yaml"))
        # of an environment that was passed as an object, the settings know nothing
        summary.env = RunDirectory(folder).about().get("own_environment") or config.env
        summary.total_timesteps = config.trainer.total_timesteps
        events = folder / "events.jsonl"
        ended = _read_tail(events, summary) if os.path.lexists(events) else None
        summary.reason = None if ended is None else ended.get("reason")
        summary.status = _status(folder, summary, ended)
    except UNREADABLE as error:
        summary.status = "broken"
        summary.reason = " ".join(f"{type(error).__name__}: {error}".split())
    return summary


def _read_tail(file: Path, summary: RunSummary) -> dict[str, Any] | None:
    """Fill in the newest numbers; returns how the run ended, if it did.

    Lines are read from the end until everything is known, at most `MAX_SCANNED_BYTES` of them. Records
    that a run took back when it continued from an earlier epoch do not count.
    """
    tail = _Tail()
    try:
        with open_log(file) as (stream, size):
            for place, line in lines_backwards(stream, size, file):
                scanned = size - place
                if scanned > MAX_SCANNED_BYTES or (tail.is_known and scanned > _WHOLE_BYTES):
                    break
                if scanned <= _WHOLE_BYTES or tail.wants(line):
                    tail.add(file, place, line)
    finally:
        summary.epoch, summary.agent_step = tail.epoch, tail.agent_step
        summary.reward, summary.score = tail.reward, tail.score
    if tail.error is not None:
        raise tail.error
    return tail.ended


class _Tail:
    """What is known of a run so far, reading its log backwards."""

    def __init__(self) -> None:
        self.epoch = self.agent_step = 0
        self.reward: float | None = None
        self.score: float | None = None
        self.ended: dict[str, Any] | None = None
        self.error: EventLogError | None = None
        """The last line that cannot be read."""
        self._kept = math.inf
        """Records of later epochs were taken back."""
        self._has_row = self._has_reward = self._has_score = self._has_end = False

    @property
    def is_known(self) -> bool:
        return self._has_row and self._has_reward and self._has_score

    def wants(self, line: bytes) -> bool:
        """Whether a line may hold what is not known yet; other lines are not even parsed."""
        if b'"run_start"' in line or b'"rewind"' in line:
            return True
        if b'/score"' in line:
            return not self._has_score
        return b'"metrics"' in line and not self._has_row

    def add(self, file: Path, place: int, line: bytes) -> None:
        try:
            event = parse_event(line)
        except ValueError as reason:
            self.error = self.error or bad_line(file, f"the line at byte {place:,}", line, reason)
            return
        try:
            self._take(event, file)
        except EventLogError as error:
            self.error = self.error or error

    def _take(self, event: Event, file: Path) -> None:
        kept = taken_back_to(event, file)
        if kept is not None:
            self._kept, self._has_end = min(self._kept, kept), True
        elif event.kind == "run_end" and not self._has_end:
            self.ended, self._has_end = event.payload, True
        elif event.kind == "metrics" or came_late(event):
            row = row_of(event, file)
            if row.epoch <= self._kept:
                self._take_row(row)

    def _take_row(self, row: MetricRow) -> None:
        if not self._has_row and not row.is_late:
            self._has_row, self.epoch, self.agent_step = True, row.epoch, row.agent_step
        if not self._has_reward and "overview/reward" in row.metrics:
            self._has_reward, self.reward = True, _finite(row.metrics["overview/reward"])
        if not self._has_score and any(map(_SCORE.fullmatch, row.metrics)):
            self._has_score, self.score = True, last_score(row.metrics)


def last_score(metrics: Mapping[str, Any]) -> float | None:
    """Mean of the categories' scores in a record of metrics; None if it has none."""
    found = [_finite(v) for k, v in metrics.items() if _SCORE.fullmatch(k)]
    scores = [score for score in found if score is not None]
    return sum(scores) / len(scores) if scores else None


def _finite(number: Any) -> float | None:
    """The log writes null for what is not finite."""
    return None if number is None or not math.isfinite(number) else float(number)


def _status(folder: Path, summary: RunSummary, ended: dict[str, Any] | None) -> str:
    if ended is None:
        return "running" if _is_at_work(folder) else "died"
    outcome = ended.get("outcome")
    if outcome in _OUTCOMES:
        return str(outcome)
    return "done" if summary.agent_step >= summary.total_timesteps else "stopped"


def _updated(folder: Path) -> str:
    for file in (folder / "events.jsonl", folder):
        try:
            return shown_time(file.stat().st_mtime)
        except OSError:
            continue
    return "-"


def seconds_since(moment: float) -> float:
    """Seconds since a time, perhaps of another computer's clock; never negative."""
    return max(time.time() - moment, 0.0)


def shown_time(seconds: float) -> str:
    """A time, given in seconds since 1970, in the local format; ``-`` if it is out of range."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds)
    except (OverflowError, ValueError, OSError):
        return "-"
    return moment.isoformat(sep=" ", timespec="seconds")


def _is_at_work(folder: Path) -> bool:
    """Whether the process that took the run's lock is alive and holds it; does not touch the lock."""
    file = folder / "run.lock"
    try:
        about = read_json(file)
        pid = int(about["pid"])
        if about["host"] != socket.gethostname():
            # its processes cannot be queried from here
            return seconds_since((folder / "events.jsonl").stat().st_mtime) < SILENT_SECONDS
        return _is_alive(pid) and _is_locked(file, pid) is not False
    except (UnsafeFileError, OSError, ValueError, KeyError, TypeError, OverflowError):
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True


def _is_locked(file: Path, pid: int) -> bool | None:
    """Whether a process holds the lock; None if the operating system does not report it."""
    about = file.stat()
    try:
        locks = _LOCK.findall(_LOCKS.read_text())
    except OSError:
        return None
    device = os.major(about.st_dev), os.minor(about.st_dev)
    for holder, major, minor, inode in locks:
        # some file systems, such as btrfs, show another device here than `stat`
        is_there = (int(major, 16), int(minor, 16)) == device or int(holder) == pid
        if int(inode) == about.st_ino and is_there:
            return True
    return False
