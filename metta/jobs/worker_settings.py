"""Settings of a worker."""

from dataclasses import dataclass

from metta.errors import ConfigError

__all__ = ["WorkerSettings"]

_FAMILIES = ("pettingzoo", "mettagrid", "envpool")
"""What may be in front of the colon of an id without being a module."""
_PETTINGZOO_PACKAGES = ("pettingzoo", "mpe2")
"""Whose modules ``pettingzoo:MODULE`` may name."""


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

    def require_env(self, env_id: str | None) -> None:
        """Refuse an environment of a module that this worker was not told to import."""
        module, _, name = (env_id or "").rpartition(":")
        if module == "pettingzoo" and name.partition(".")[0] not in _PETTINGZOO_PACKAGES:
            module = name  # which would be imported
        if module and module not in _FAMILIES and module not in self.modules:
            raise ConfigError(
                f"the job names the environment {env_id!r}, whose module this worker does not import; "
                f"start it with: metta worker --env {env_id}"
            )
