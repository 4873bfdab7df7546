"""Real workers for tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metta.jobs.local_workers import LocalWorkers
from metta.jobs.worker_settings import WorkerSettings


@contextlib.contextmanager
def working(database: str | Path, count: int = 1, **settings: Any) -> Iterator[LocalWorkers]:
    """Worker processes that serve a database."""
    with LocalWorkers(WorkerSettings(str(database), **settings), count) as workers:
        yield workers
