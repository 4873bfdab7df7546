"""`JobWatch`: holds a job while it is done, and knows whether it is still wanted."""

import contextlib
import threading

from metta.errors import MettaError
from metta.jobs.failures import JobLostError
from metta.jobs.job import Job
from metta.jobs.ledger import JobLedger

__all__ = ["JobWatch"]

_SHARE = 1 / 3
"""Of a lease, after which it is renewed."""


class JobWatch:
    """Renews the lease of a job from a thread of its own, until the block ends.

        with JobWatch(ledger, job, lease_seconds=30.0) as watch:
            while not finished:
                watch.check()          # JobLostError if it is not wanted any more

    While the database is away nothing is renewed; the job is done all the same.
    """

    def __init__(self, ledger: JobLedger, job: Job, lease_seconds: float) -> None:
        self._ledger, self._job, self._lease_seconds = ledger, job, lease_seconds
        self._over, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renew, name="renews a lease", daemon=True)

    def check(self) -> None:
        """Raise `JobLostError` if the job is not wanted any more."""
        if self._lost.is_set():
            raise JobLostError(self._job.key)

    def _renew(self) -> None:
        while not self._over.wait(self._lease_seconds * _SHARE):
            with contextlib.suppress(MettaError):
                if not self._ledger.renew(self._job, self._lease_seconds):
                    self._lost.set()
                    return

    def __enter__(self) -> "JobWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
