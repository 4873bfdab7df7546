"""A worker: takes one job after the other, does it, and gives its result."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from metta.database.patience import patiently
from metta.errors import DatabaseError
from metta.jobs.failures import JobLostError, UnfitWorkerError, is_final, shown_error
from metta.jobs.job import Job
from metta.jobs.kinds import KINDS, require_kinds
from metta.jobs.ledger import JobLedger
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings
from metta.secrets import scrub

__all__ = ["Report", "work"]

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.02, 0.5
"""Pauses between looks for a job: the first, and the longest."""
_MAX_LEFT = 400
"""Jobs that are left to other workers and remembered."""
_DONE, _LEFT = "done", "left to other workers"

Report = Callable[[Job, str, float], None]
"""Told of each job that a worker is done with: the job, what came of it, and the seconds that it took."""


def work(settings: WorkerSettings, name: str, report: Report | None = None) -> int:
    """Do jobs until none came for `idle_seconds`, or `KeyboardInterrupt`; returns how many were done.

    An interrupted job is given back, and another worker may take it; so is one that only a worker with
    other settings may do. While the database is away the worker waits; the result of what it does meanwhile
    is kept until the database is back.
    """
    require_kinds(settings.kinds)
    num_done, left = 0, deque[int](maxlen=_MAX_LEFT)
    last, pause = time.monotonic(), _FIRST_LOOK_SECONDS
    with JobLedger(settings.database) as ledger:
        while True:
            asked = time.monotonic()
            job = patiently(lambda: _next(ledger, settings, name, left))
            last += time.monotonic() - asked  # while the database is away, nobody is idle
            outcome = None if job is None else _do(job, ledger, settings, report)
            if job is not None and outcome == _LEFT:
                left.append(job.id)
            elif outcome is not None:
                num_done += outcome == _DONE
                last, pause = time.monotonic(), _FIRST_LOOK_SECONDS
                continue
            idle = settings.idle_seconds
            if job is None and idle is not None and time.monotonic() - last >= idle:
                return num_done
            time.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK_SECONDS)


def _next(
    ledger: JobLedger, settings: WorkerSettings, name: str, left: Collection[int]
) -> Job | None:
    return ledger.take(
        name,
        lease_seconds=settings.lease_seconds,
        kinds=settings.kinds,
        groups=settings.groups,
        besides=left,
    )


def _do(job: Job, ledger: JobLedger, settings: WorkerSettings, report: Report | None) -> str:
    """Do a job and report what came of it, which is returned."""
    begin = time.monotonic()
    try:
        outcome, about = _outcome(job, ledger, settings)
    except KeyboardInterrupt:
        with contextlib.suppress(DatabaseError):  # else its lease ends by itself
            ledger.give_back(job)
        raise
    if report is not None:
        report(job, f"{outcome}{about}", time.monotonic() - begin)
    return outcome


def _outcome(job: Job, ledger: JobLedger, settings: WorkerSettings) -> tuple[str, str]:
    result: dict[str, Any] | None = None
    failure: Exception | None = None
    try:
        with JobWatch(ledger, job, settings.lease_seconds) as watch:
            function = KINDS.get(job.kind)
            if function is None:
                raise UnfitWorkerError(f"this metta does not know jobs of kind {job.kind!r}")
            result = function(job, settings, watch)
    except JobLostError:
        return "not wanted any more", ""
    except UnfitWorkerError as reason:
        patiently(lambda: ledger.give_back(job))
        return _LEFT, f": {scrub(str(reason))}"
    except Exception as error:  # noqa: BLE001  # whatever a job raises is reported to who asked for it
        failure = error
    if result is not None:
        is_taken = patiently(lambda: ledger.finish(job, result))
        return _DONE, "" if is_taken else ", but another worker was faster"
    assert failure is not None, "a job has a result, or failed"
    text, is_last = scrub(shown_error(failure)), is_final(failure)
    patiently(lambda: ledger.fail(job, text, is_final=is_last))
    return "failed", f": {text}"
