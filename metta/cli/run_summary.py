"""How a run stands, read from the files it wrote."""

import datetime
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.errors import MettaError, UnsafeFileError
from metta.loggers.event_log import Event, read_events
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
"""A run on another host that wrote nothing for so long is not taken to be running."""
_LOCKS = Path("/proc/locks")
_LOCK = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
"""A lock that is held; those who wait for it have an arrow before the kind."""
UNREADABLE = (
    MettaError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
)  # fmt: skip
"""What files that are not as metta writes them may raise."""


@dataclass
class RunSummary:
    """How a run stands, as its files tell."""

    name: str
    env: str
    status: str
    """`running`, `done`, `stopped`, `failed`, `died` where it ended without a word, or `broken` where its
    files cannot be read; of a database `silent` where it did not end and nothing came lately."""
    epoch: int
    agent_step: int
    total_timesteps: int
    """0 where it is not known."""
    reward: float | None
    """Mean return of the last 100 episodes."""
    score: float | None
    """Mean return of the last evaluation."""
    updated: str
    reason: str | None
    """Why it ended, or what is broken."""
    path: str
    """Of its folder; of a database, its id there."""


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
        summary.env, summary.total_timesteps = config.env, config.trainer.total_timesteps
        ended = _read_events(folder / "events.jsonl", summary)
        summary.reason = None if ended is None else ended.get("reason")
        summary.status = _status(folder, summary, ended)
    except UNREADABLE as error:
        summary.status = "broken"
        summary.reason = " ".join(f"{type(error).__name__}: {error}".split())
    return summary


def _read_events(file: Path, summary: RunSummary) -> dict[str, Any] | None:
    """Fill in the newest numbers, as far as lines can be read; returns how the run ended, if it did.

    Rows that a run took back when it went on from an earlier epoch do not count.
    """
    rows: list[tuple[int, int, dict[str, Any]]] = []
    late: dict[int, dict[str, Any]] = {}
    ended: dict[str, Any] | None = None
    try:
        for event in _events(file):
            if event.kind == "metrics":
                step, epoch = (int(event.payload.get(name, 0)) for name in ("agent_step", "epoch"))
                rows.append((epoch, step, event.payload["metrics"]))
            elif event.kind == "evaluation" and "late_row" in event.payload["scores"]:
                late[int(event.payload["epoch"])] = event.payload["scores"]["late_row"]
            elif event.kind == "run_end":
                ended = event.payload
            elif event.kind in ("run_start", "rewind"):
                ended, kept = None, event.payload.get("from_epoch", 0)
                rows = [row for row in rows if row[0] <= kept]
                late = {epoch: row for epoch, row in late.items() if epoch <= kept}
    finally:
        numbers: dict[str, Any] = {}
        for summary.epoch, summary.agent_step, metrics in rows:
            numbers |= metrics
        numbers |= late[max(late)] if late else {}
        summary.reward = _finite(numbers.get("overview/reward"))
        summary.score = last_score(numbers)
    return ended


def last_score(metrics: Mapping[str, Any]) -> float | None:
    """Mean of the categories' scores in a row of metrics; None where it has none."""
    found = [_finite(v) for k, v in metrics.items() if re.fullmatch(r"eval_.*/score", k)]
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
    """How long ago something was, perhaps by another computer's clock; never negative."""
    return max(time.time() - moment, 0.0)


def shown_time(seconds: float) -> str:
    """A moment, given in seconds since 1970, as people here write it; ``-`` where no calendar has it."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds)
    except (OverflowError, ValueError, OSError):
        return "-"
    return moment.isoformat(sep=" ", timespec="seconds")


def _events(file: Path) -> Iterable[Event]:
    return read_events(file) if file.exists() else ()


def _is_at_work(folder: Path) -> bool:
    """Whether the process that took the run's lock still lives and has it; the lock is left alone."""
    file = folder / "run.lock"
    try:
        about = read_json(file)
        pid = int(about["pid"])
        if about["host"] != socket.gethostname():
            # nobody can ask for its processes from here
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
    """Whether anybody holds the lock; None where the system does not tell."""
    about = file.stat()
    try:
        locks = _LOCK.findall(_LOCKS.read_text())
    except OSError:
        return None
    device = os.major(about.st_dev), os.minor(about.st_dev)
    for holder, major, minor, inode in locks:
        # some file systems, as btrfs, show another device here than to `stat`
        is_there = (int(major, 16), int(minor, 16)) == device or int(holder) == pid
        if int(inode) == about.st_ino and is_there:
            return True
    return False
