"""Settings of a worker."""

from dataclasses import dataclass
from typing import Any

from metta.envs.env_ids import module_of
from metta.errors import ConfigError
from metta.jobs.failures import UnfitWorkerError

__all__ = ["WorkerSettings"]


@dataclass(frozen=True)
class WorkerSettings:
    """Which jobs a worker takes, and what they may use."""

    database: str
    """Address of the database that has the jobs."""
    runs: str = "runs"
    """Folder in which training jobs make their runs."""
    kinds: tuple[str, ...] = ()
    """Kinds of jobs that it takes; empty: all."""
    groups: tuple[str, ...] = ()
    """Groups that it serves; empty: all."""
    modules: tuple[str, ...] = ()
    """Modules of environments that jobs may name: naming one imports it, so the worker's user decides."""
    lease_seconds: float = 30.0
    """How long a job stays with a worker that is not heard of."""
    idle_seconds: float | None = None
    """Without a job for so long, the worker ends; None: it waits for ever."""

    def require_env(self, env_id: Any) -> None:
        """`UnfitWorkerError` for an environment of a module that this worker was not told to import."""
        if not isinstance(env_id, str):
            raise ConfigError(f"the job names no environment by its id, but {env_id!r}")
        module = module_of(env_id)
        if module is not None and module not in self.modules:
            raise UnfitWorkerError(f"its environment needs a worker with --env {env_id}")
