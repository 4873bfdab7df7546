"""`Curriculum`: which task comes next."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from metta.curriculum.samplers import WEIGHINGS, ScoreTable
from metta.curriculum.tasks import Task, tasks_of
from metta.errors import ConfigError, StateError, did_you_mean
from metta.train.run_config import CurriculumConfig

__all__ = ["Curriculum", "Task"]


class Curriculum:
    """Hands out tasks and learns from their scores; it runs in the process that trains.

        curriculum = Curriculum(config.curriculum)
        index = curriculum.draw(generator)          # for an environment's next episode
        curriculum.complete(index, score)           # when that episode is over

    `env` replaces the configured environment: an id, which becomes the configured one, or anything else
    that `make_vec_env` takes (a class, a factory, a list of factories, an environment). Another id
    than a configured one is refused.
    """

    state_name = "curriculum"
    state_version = 2

    def __init__(self, config: CurriculumConfig | None = None, *, env: Any = None) -> None:
        self.config = config or CurriculumConfig()
        if isinstance(env, str):
            self.config, env = _with_id(self.config, env), None
        self.tasks = tasks_of(self.config, env)
        self.names = _unique([task.name for task in self.tasks])
        """Unique names of the tasks."""
        self._given = _given_weights(self.config, self.names)
        self.scores = ScoreTable(len(self.tasks), self.config.score_smoothing)

    @property
    def task(self) -> Task:
        """The first task: what evaluations of the training task play, and where spaces are read."""
        return self.tasks[0]

    @property
    def is_single(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.tasks) == 1

    @property
    def probabilities(self) -> np.ndarray:
        """``[K]`` how likely each task comes next."""
        weights = WEIGHINGS[self.config.kind](self.scores, self.config) * self._given
        total = float(weights.sum())
        # if all sampled weights are 0, only the given weights count
        weights = weights / total if total > 0.0 else self._given / self._given.sum()
        share = self.config.min_share
        open_tasks = self._open_tasks()
        mixed: np.ndarray = (1.0 - share) * weights + share * open_tasks / open_tasks.sum()
        return mixed

    def _open_tasks(self) -> np.ndarray:
        """``[K]`` the tasks that may come at all, by their given weights."""
        if self.config.kind != "progressive":
            return self._given
        newest = int(np.argmax(WEIGHINGS["progressive"](self.scores, self.config)))
        return self._given * (np.arange(len(self.tasks)) <= newest)

    def draw(self, generator: np.random.Generator) -> int:
        """The index of the next task."""
        if self.is_single:
            return 0
        bounds = np.cumsum(self.probabilities)
        place = np.searchsorted(bounds, generator.random() * bounds[-1], side="right")
        return int(min(place, len(self.tasks) - 1))

    def complete(self, task: int, score: float) -> None:
        """An episode of a task ended with this score: the mean return of its agents."""
        self.scores.record(task, score)

    def metrics(self) -> dict[str, float]:
        """Probability, share of all episodes and smoothed score of each task; nothing for a single one.

        ``curriculum/probability/<task>``, ``curriculum/completion/<task>``, ``curriculum/score/<task>``
        """
        if self.is_single:
            return {}
        table, total = self.scores, max(1, int(self.scores.counts.sum()))
        found: dict[str, float] = {}
        for name, probability, count, score in zip(
            self.names, self.probabilities, table.counts, table.fast, strict=True
        ):
            found[f"curriculum/probability/{name}"] = float(probability)
            found[f"curriculum/completion/{name}"] = float(count) / total
            if count:
                found[f"curriculum/score/{name}"] = float(score)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Scores, and the names that they belong to."""
        return {"names": self.names, **self.scores.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `StateError` if the tasks differ."""
        if list(state["names"]) != self.names:
            raise StateError(
                f"the saved curriculum has the tasks {list(state['names'])[:8]}, this one has "
                f"{self.names[:8]}; continue with the tasks of the run"
            )
        self.scores.load_state_dict(state)


def _with_id(config: CurriculumConfig, env_id: str) -> CurriculumConfig:
    """The configuration with this environment, so that a run that is saved names it."""
    if config.env not in (env_id, CurriculumConfig().env):
        raise ConfigError(
            f"env={env_id!r}, but the settings have curriculum.env={config.env!r}; give one of them"
        )
    return dataclasses.replace(config, env=env_id)


def _unique(names: list[str]) -> list[str]:
    """Unique names of tasks; a second one of the same name gets a number."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _given_weights(config: CurriculumConfig, names: list[str]) -> np.ndarray:
    """``[K]`` weights from `task_weights`, 1 for tasks that it does not name."""
    for name in config.task_weights:
        if name not in names:
            raise ConfigError(
                f"curriculum.task_weights: there is no task {name!r}{did_you_mean(name, names)}"
            )
    weights = np.ones(len(names))
    for index, name in enumerate(names):
        given = config.task_weights.get(name, 1.0)
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0.0 <= given < np.inf:
            raise ConfigError(
                f"curriculum.task_weights.{name}: found {given!r}; allowed is a number of at least 0"
            )
        weights[index] = given
    if weights.sum() == 0.0:
        raise ConfigError(
            "curriculum.task_weights: all are 0; give at least one task a weight above 0"
        )
    return weights
