"""A worker: takes one job after the other, does it, and gives its result."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from metta.database.patience import patiently
from metta.errors import ConfigError, DatabaseError
from metta.jobs.failures import JobLostError, is_final, shown_error
from metta.jobs.job import Job
from metta.jobs.kinds import KINDS, require_kinds
from metta.jobs.ledger import JobLedger
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings
from metta.secrets import scrub

__all__ = ["Report", "work"]

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.02, 0.5
"""Pauses between looks for a job: the first, and the longest."""
Report = Callable[[Job, str, float], None]
"""Told of each job that a worker is done with: the job, what came of it, and the seconds that it took."""


def work(settings: WorkerSettings, name: str, report: Report | None = None) -> int:
    """Do jobs until none came for `idle_seconds`, or `KeyboardInterrupt`; returns how many were done.

    An interrupted job is given back, and another worker may take it. While the database is away the worker
    waits; the result of what it does meanwhile is kept until the database is back.
    """
    require_kinds(settings.kinds)
    num_done, wants = 0, {"kinds": settings.kinds, "groups": settings.groups}
    last, pause = time.monotonic(), _FIRST_LOOK_SECONDS
    with JobLedger(settings.database) as ledger:
        while True:
            job = patiently(
                lambda: ledger.take(name, lease_seconds=settings.lease_seconds, **wants)
            )
            if job is not None:
                num_done += _do(job, ledger, settings, report)
                last, pause = time.monotonic(), _FIRST_LOOK_SECONDS
                continue
            idle = settings.idle_seconds
            if idle is not None and time.monotonic() - last >= idle:
                return num_done
            time.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK_SECONDS)


def _do(job: Job, ledger: JobLedger, settings: WorkerSettings, report: Report | None) -> bool:
    """Do a job and report what came of it; returns whether its result was taken."""
    begin = time.monotonic()
    try:
        outcome = _outcome(job, ledger, settings)
    except KeyboardInterrupt:
        with contextlib.suppress(DatabaseError):  # else its lease ends by itself
            ledger.give_back(job)
        raise
    if report is not None:
        report(job, outcome, time.monotonic() - begin)
    return outcome == "done"


def _outcome(job: Job, ledger: JobLedger, settings: WorkerSettings) -> str:
    result: dict[str, Any] | None = None
    failure: Exception | None = None
    try:
        with JobWatch(ledger, job, settings.lease_seconds) as watch:
            function = KINDS.get(job.kind)
            if function is None:
                raise ConfigError(f"this metta does not know jobs of kind {job.kind!r}")
            result = function(job, settings, watch)
    except JobLostError:
        return "not wanted any more"
    except Exception as error:  # noqa: BLE001  # whatever a job raises is reported to who asked for it
        failure = error
    if result is not None:
        is_taken = patiently(lambda: ledger.finish(job, result))
        return "done" if is_taken else "done, but another worker was faster"
    assert failure is not None, "a job has a result, or failed"
    text, is_last = scrub(shown_error(failure)), is_final(failure)
    patiently(lambda: ledger.fail(job, text, is_final=is_last))
    return f"failed: {text}"
