"""What jobs can be: each kind with the function that does it in a worker."""

from collections.abc import Callable
from typing import Any

from metta.errors import ConfigError
from metta.jobs.evaluate import evaluate
from metta.jobs.job import Job
from metta.jobs.train import train
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings

__all__ = ["KINDS", "require_kinds"]

JobFunction = Callable[[Job, WorkerSettings, JobWatch], dict[str, Any]]

KINDS: dict[str, JobFunction] = {"evaluate": evaluate, "train": train}
"""Kind -> function that returns the result as plain data."""


def require_kinds(kinds: tuple[str, ...]) -> None:
    """Refuse kinds that there are not."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ConfigError(f"there are no jobs of kind {unknown[0]!r}; kinds are {', '.join(KINDS)}")
