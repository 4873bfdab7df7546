"""`RayWorkers`: tasks on Ray (extra `ray`) that do jobs, and are replaced if they die."""

import contextlib
import dataclasses
import itertools
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from metta.cluster.ray_cluster import RayCluster
from metta.database.connection import database_url
from metta.errors import ConfigError, DatabaseUnavailableError, EnvError
from metta.jobs.ledger import JobLedger
from metta.jobs.worker import work
from metta.jobs.worker_names import worker_name
from metta.jobs.worker_settings import WorkerSettings

__all__ = ["RayWorkers", "require_shared"]

_STOP_SECONDS = 90.0
"""A run that is stopped ends its epoch and saves first."""
_MAX_QUICK_ENDS = 5
"""Workers that die soon and without a job, one after the other, before that is an error."""
_QUICK_SECONDS = 60.0
_THREADS = "OMP_NUM_THREADS"

_numbers = itertools.count()
"""Of the workers that this process has started: no two have one name."""


class _Worker(NamedTuple):
    name: str
    started: float


class RayWorkers:
    """Workers on a cluster, each with one processor; they end with this process, also if it is killed.

        with RayWorkers(settings, count=8, address="10.0.0.1:6379") as workers:
            while not done:
                workers.check(ledger)          # every now and then: replaces those that died

    Without an `address` the cluster is one of this process alone. Errors name the `setting` that gave it.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        count: int,
        *,
        address: str | None = None,
        setting: str = "address",
    ) -> None:
        if count < 1:
            raise ConfigError(f"{count} workers; give 1 or more")
        self.settings, self._count = _absolute(settings), count
        self._workers: dict[Any, _Worker] = {}
        self._num_quick_ends = 0
        self._cluster = RayCluster(address, count, setting=setting)
        try:
            self._ray: Any = self._cluster.ray
            self._cluster.require_room(count, "workers", "start fewer, or add nodes")
            self._task = self._ray.remote(name="metta worker", max_retries=0, max_calls=1)(_serve)
            for _ in range(count):
                self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        require_shared(self.settings.database, self._cluster.nodes_elsewhere())
        name = f"{worker_name(os.getpid())}:ray-{next(_numbers)}"  # it ends with this process
        task = self._task.options(num_cpus=self._cluster.processors_each(self._count))
        started = task.remote(self.settings, name, os.environ.get(_THREADS))
        self._workers[started] = _Worker(name, time.monotonic())

    def check(self, ledger: JobLedger) -> bool:
        """Replace workers that died, whose jobs others may take at once; returns whether any is at work.

        One that ended by itself, because there was no job for `idle_seconds`, is not replaced.
        """
        self._cluster.guard()  # Ray starts processes as they are needed
        tasks = list(self._workers)
        ended = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
        for task in ended:
            worker, reason = self._workers.pop(task), self._reason(task)
            if reason is not None:
                self._start()
                has_worked = False
                with contextlib.suppress(DatabaseUnavailableError):  # else its lease ends by itself
                    has_worked = ledger.abandon(worker.name) > 0
                is_quick = time.monotonic() - worker.started < _QUICK_SECONDS and not has_worked
                self._num_quick_ends = self._num_quick_ends + 1 if is_quick else 0
                if self._num_quick_ends > _MAX_QUICK_ENDS:
                    raise EnvError(f"workers on Ray end before they have done a job: {reason}")
        return bool(self._workers)

    def _reason(self, task: Any) -> str | None:
        """Why a worker died; None if it ended by itself."""
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return f"{type(error.cause).__name__}: {error.cause}"
        except self._ray.exceptions.RayError as error:
            return str(error).strip().partition("\n")[0]
        return None

    def close(self) -> None:
        """Let workers give back what they do, and end; may be called more than once."""
        tasks = list(self._workers)
        self._workers.clear()
        try:
            for task in tasks:
                self._ray.cancel(task)  # a KeyboardInterrupt there
            if tasks:
                _, late = self._ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_SECONDS)
                for task in late:
                    self._ray.cancel(task, force=True)
        finally:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_shared(database: str, nodes_elsewhere: Sequence[str]) -> None:
    """`ConfigError` if nodes on other machines could not use the database."""
    if nodes_elsewhere and database_url(database).get_backend_name() == "sqlite":
        raise ConfigError(
            "the jobs are in a SQLite file, which only this machine can use, and the Ray cluster has nodes "
            f"on other machines, such as {nodes_elsewhere[0]}; use PostgreSQL: --database "
            "postgresql://user:env:NAME@host/database"
        )


def _absolute(settings: WorkerSettings) -> WorkerSettings:
    """With paths that do not depend on the folder in which Ray starts a worker."""
    runs, database = str(Path(settings.runs).absolute()), settings.database
    url = database_url(database)
    if url.get_backend_name() == "sqlite" and url.database:
        path = str(Path(url.database).absolute())
        is_url = "://" in database
        database = url.set(database=path).render_as_string() if is_url else path
    return dataclasses.replace(settings, runs=runs, database=database)


def _serve(settings: WorkerSettings, name: str, threads: str | None) -> None:
    """A worker, in a process of Ray; `KeyboardInterrupt` lets it give back its job and end."""
    # Ray allows one thread; a job shall give the same bits as in other workers
    os.environ.pop(_THREADS, None)
    if threads is not None:
        os.environ[_THREADS] = threads
    warnings.simplefilter("ignore")  # results have what is worth knowing
    with contextlib.suppress(KeyboardInterrupt):
        work(settings, name)
