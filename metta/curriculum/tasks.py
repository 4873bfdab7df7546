"""Tasks: an environment with its arguments, and how lists and ranges of arguments become tasks."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metta.errors import ConfigError
from metta.train.run_config import CurriculumConfig

__all__ = ["MAX_TASKS", "Task", "tasks_of"]

MAX_TASKS = 10_000
"""Of one curriculum: each is a row of its statistics."""
_RANGE = {"low", "high", "bins"}
_ENV = "env"


@dataclass(frozen=True)
class Task:
    """An environment (anything that `make_vec_env` understands) and its arguments."""

    env: Any
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """Its name in a curriculum; empty: named after the environment."""
    wrappers: tuple[str, ...] = ()
    """Around its environment, as in ``trainer.curriculum.wrappers``."""

    @property
    def name(self) -> str:
        """The label, or a short name: an id without its module, or the name of a class or factory."""
        named = self.env if isinstance(self.env, str) else getattr(self.env, "__name__", None)
        return self.label or (named or type(self.env).__name__).rpartition(":")[2]


def tasks_of(config: CurriculumConfig, env: Any = None) -> tuple[Task, ...]:
    """Every task of a curriculum, in order; `env` is used where a task names no environment.

    Buckets are combined with each other: two of three values each make nine tasks.
    """
    own = config.env if env is None else env
    if config.kind == "single":
        if config.tasks or config.buckets:
            raise ConfigError(
                "curriculum.tasks or curriculum.buckets are given, but kind='single' plays none of them; "
                "set curriculum.kind, e.g. to 'random' or 'learning_progress'"
            )
        return (Task(own, dict(config.env_kwargs), wrappers=config.wrappers),)
    found = [_named_task(config, own, name, given) for name, given in config.tasks.items()]
    if config.buckets:
        found += _bucket_tasks(config, own)
    if not found:
        raise ConfigError(
            f"curriculum kind={config.kind!r} has no tasks; give curriculum.tasks, e.g. "
            '{"easy": {"gravity": 5.0}, "hard": {"gravity": 12.0}}, or curriculum.buckets, e.g. '
            '{"gravity": [5.0, 8.0, 12.0]}'
        )
    return tuple(found)


def _named_task(config: CurriculumConfig, own: Any, name: str, given: Any) -> Task:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"curriculum.tasks.{name}: found {given!r}; a task is a mapping of the environment's "
            f"arguments (and {_ENV!r} where it is another environment)"
        )
    arguments = {key: value for key, value in given.items() if key != _ENV}
    env_kwargs = {**config.env_kwargs, **arguments}
    return Task(given.get(_ENV, own), env_kwargs, str(name), config.wrappers)


def _bucket_tasks(config: CurriculumConfig, own: Any) -> list[Task]:
    choices = {name: _values_of(name, given) for name, given in config.buckets.items()}
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > MAX_TASKS:
        raise ConfigError(
            f"curriculum.buckets make {count:,} tasks, more than {MAX_TASKS:,}; use fewer values or bins"
        )
    tasks = []
    for combination in itertools.product(*choices.values()):
        arguments = dict(zip(choices, combination, strict=True))
        label = ",".join(f"{name}={_short(value)}" for name, value in arguments.items())
        tasks.append(Task(own, {**config.env_kwargs, **arguments}, label, config.wrappers))
    return tasks


def _values_of(name: str, given: Any) -> list[Any]:
    """The values of a bucket: a list of them, or the middles of equal parts of a range."""
    if isinstance(given, list | tuple) and given:
        return list(given)
    if isinstance(given, Mapping) and given.keys() == _RANGE:
        low, high, bins = given["low"], given["high"], given["bins"]
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (low, high))
        if numbers and low < high and isinstance(bins, int) and 1 <= bins <= MAX_TASKS:
            width = (high - low) / bins
            return [low + width * (index + 0.5) for index in range(bins)]
    raise ConfigError(
        f"curriculum.buckets.{name}: found {given!r}; a bucket is a list of values, or a range like "
        '{"low": 5.0, "high": 15.0, "bins": 4} with low < high'
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
