"""Jobs as plain data: what is asked for, what a worker holds, and how a job stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["OPEN_STATES", "Job", "JobRecord", "JobSpec", "JobState"]

JobState = Literal["waiting", "held", "done", "failed", "cancelled"]
OPEN_STATES: tuple[JobState, ...] = ("waiting", "held")
"""States of jobs that have not ended."""


@dataclass(frozen=True)
class JobSpec:
    """A job that is asked for."""

    kind: str
    """What is to be done: a key of `metta.jobs.kinds.KINDS`."""
    key: str
    """Unique in a database: posting it again changes nothing."""
    group: str
    """What it belongs to, e.g. ``sweep/first``; workers may serve some groups only."""
    payload: Mapping[str, Any]
    """Plain JSON data. Whoever writes to the database can ask for this, and for nothing else."""
    priority: int = 0
    """Higher ones are taken first; equal ones in the order in which they were posted."""
    max_attempts: int = 3
    """How often it is begun, if workers die or it fails."""


@dataclass(frozen=True)
class Job:
    """A job that a worker holds, until its lease ends."""

    id: int
    kind: str
    key: str
    group: str
    payload: dict[str, Any]
    attempt: int
    """1 for the first; a later attempt makes what an earlier one reports worthless."""
    worker: str


@dataclass(frozen=True)
class JobRecord:
    """How a job stands. Times are seconds since 1970, by the clock of the database."""

    id: int
    kind: str
    key: str
    group: str
    payload: dict[str, Any]
    state: JobState
    attempt: int
    worker: str | None
    """Who holds or held it."""
    result: dict[str, Any] | None
    error: str | None
    """Why the last attempt failed."""
    posted: float
    started: float | None
    ended: float | None
