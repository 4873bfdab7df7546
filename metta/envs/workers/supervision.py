"""Supervision of workers: those that fail are started again within a budget, or the run ends."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from metta.envs.workers.pool import Limit, WorkerFailure, WorkerPool, WorkersFailedError
from metta.envs.workers.worker import READY
from metta.errors import EnvError

__all__ = ["RecoverFn", "OnEnvError", "Restart", "RestartBudget", "Supervisor"]

OnEnvError = Literal["fail", "restart"]
RecoverFn = Callable[[int, bool], str]
"""Brings the rows of a worker that has just started to where they were, and has it answer all pending
commands. The second argument: this failed before, so rows must begin afresh. Returns why
they did; nothing if they came back exactly."""

_WINDOW_SECONDS = 3600.0
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class Restart:
    """A worker that was started again."""

    failure: WorkerFailure
    outcome: Literal["exact", "lost", "failed again"]
    """Rows came back to where they were, or began fresh episodes, or the new process failed at once."""
    reason: str = ""
    """Why they were lost."""


class RestartBudget:
    """So many restarts per hour: what fails now and then continues for weeks, a crash loop ends soon."""

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._times: deque[float] = deque()

    def spend(self) -> bool:
        """Use one up; False: none remains."""
        while self._times and self._clock() - self._times[0] > _WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self.max_restarts:
            return False
        self._times.append(self._clock())
        return True


class Supervisor:
    """Replaces workers that will not answer, within the budget."""

    def __init__(
        self, pool: WorkerPool, budget: RestartBudget, on_env_error: OnEnvError, start_limit: Limit
    ) -> None:
        self._pool, self._budget, self._on_env_error = pool, budget, on_env_error
        self._start_limit = start_limit
        self.restarts: list[Restart] = []

    def first_answers(self) -> None:
        """Wait for workers to get ready; an environment that cannot be made is reported at once."""
        try:
            self._pool.collect(READY, self._start_limit)
        except WorkersFailedError as failed:
            self._stop(failed.failures[0].message)

    def replace(self, failures: list[WorkerFailure], recover: RecoverFn) -> None:
        """Start workers again, and what fails meanwhile; `EnvError` where they may not be."""
        failed_before: set[int] = set()
        while failures:
            for failure in failures:
                self._spend(failure)
            for failure in failures:
                self._pool.restart(failure.worker)
            again: list[WorkerFailure] = []
            for failure in failures:
                again += self._bring_back(failure, recover, failed_before)
            failures = again

    def _bring_back(
        self, failure: WorkerFailure, recover: RecoverFn, failed_before: set[int]
    ) -> list[WorkerFailure]:
        """Wait for one worker that was started again, and for its rows; how it failed, if it did."""
        worker, is_ready = failure.worker, False
        try:
            self._pool.wait_for(worker, READY, self._start_limit)
            is_ready = True
            reason = recover(worker, worker in failed_before)
        except WorkersFailedError as failed:
            self.restarts.append(Restart(failure, "failed again"))
            if is_ready:
                failed_before.add(worker)
            return failed.failures
        self.restarts.append(Restart(failure, "lost" if reason else "exact", reason))
        return []

    def _spend(self, failure: WorkerFailure) -> None:
        if failure.is_env_error and self._on_env_error == "fail":
            self._stop(failure.message)
        allowed = self._budget.max_restarts
        if not self._budget.spend():
            tried = (
                f"\n{allowed} restarts of workers within an hour did not help; find out why they fail, or "
                "raise max_worker_restarts"
            )
            self._stop(failure.message + (tried if allowed else ""))

    def _stop(self, message: str) -> None:
        self._pool.stop(_STOP_SECONDS)
        raise EnvError(message)
