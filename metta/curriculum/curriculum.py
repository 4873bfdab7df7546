"""`Curriculum`: which task comes next."""

from dataclasses import dataclass, field
from typing import Any

from metta.train.run_config import CurriculumConfig

__all__ = ["Curriculum", "Task"]


@dataclass(frozen=True)
class Task:
    """An environment (anything that `make_vec_env` understands) and its arguments."""

    env: Any
    env_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short name: an id without its module, or the name of a class or factory."""
        named = self.env if isinstance(self.env, str) else getattr(self.env, "__name__", None)
        return (named or type(self.env).__name__).rpartition(":")[2]


class Curriculum:
    """Hands out tasks; this one has a single task, which every environment plays.

        curriculum = Curriculum(config.curriculum)

    `env` replaces the configured id where an environment has none: a factory, or an environment.
    """

    def __init__(self, config: CurriculumConfig | None = None, *, env: Any = None) -> None:
        self.config = config or CurriculumConfig()
        self._env = env

    @property
    def task(self) -> Task:
        """The task to train on."""
        env = self.config.env if self._env is None else self._env
        return Task(env, dict(self.config.env_kwargs))
