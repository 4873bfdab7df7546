"""One environment that plays many tasks: a table of factories behind one `gymnasium.Env`."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from metta.envs.rows.row_spec import EnvFactory, GymEnv
from metta.errors import EnvError, StateError
from metta.spaces import obs_spec_of

__all__ = ["RowTasks", "TaskedEnv"]

_MAX_OPEN = 4
"""Environments that stay open for tasks that may come again."""


@dataclass(frozen=True)
class RowTasks:
    """The task that each environment plays, and the task of its next episode; ``[n]`` int32 each."""

    now: np.ndarray
    next: np.ndarray

    @classmethod
    def allocate(cls, num_envs: int) -> "RowTasks":
        """Every environment plays the first task."""
        return cls(np.zeros(num_envs, np.int32), np.zeros(num_envs, np.int32))

    def part(self, rows: slice) -> "RowTasks":
        """The same memory, seen by some of the environments."""
        return RowTasks(self.now[rows], self.next[rows])

    def state(self) -> dict[str, np.ndarray]:
        """Copies of both columns."""
        return {"tasks": self.now.copy(), "next_tasks": self.next.copy()}

    def load(self, state: Mapping[str, Any], num_tasks: int) -> None:
        """Restore what `state` returned; `StateError` if it does not fit."""
        for name, own in (("tasks", self.now), ("next_tasks", self.next)):
            column = np.asarray(state.get(name))
            fits = column.shape == own.shape and column.dtype == own.dtype
            if not fits or (column < 0).any() or (column >= num_tasks).any():
                raise StateError(
                    f"the saved {name} are not {len(own)} numbers of {num_tasks} tasks; continue with the "
                    "environments and tasks of the run"
                )
            own[:] = column


class TaskedEnv(gymnasium.Env[Any, Any]):
    """Plays the task that `begin_task` named last; environments are made when they are first played.

    All tasks have the spaces of the first one (bounds of observations may differ).
    """

    def __init__(self, factories: Sequence[EnvFactory]) -> None:
        self._factories = list(factories)
        self._open: OrderedDict[int, GymEnv] = OrderedDict()
        self.task = 0
        """Index of the task that is played."""
        self.env = self._take(0)
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.metadata = self.env.metadata
        self.render_mode = self.env.render_mode

    @property
    def num_tasks(self) -> int:
        """How many tasks there are."""
        return len(self._factories)

    def begin_task(self, task: int) -> None:
        """The next `reset` begins an episode of this task."""
        if task != self.task or task not in self._open:
            self.env, self.task = self._take(task), task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the task's environment."""
        return self.env.step(action)

    def render(self) -> Any:
        """What the task's environment draws."""
        return self.env.render()

    def close(self) -> None:
        """Close the environments of all tasks."""
        with ExitStack() as closing:
            while self._open:
                closing.callback(self._open.popitem()[1].close)

    def open_envs(self) -> list[tuple[int, GymEnv]]:
        """Tasks whose environments are open; the one that is played is the last."""
        return list(self._open.items())

    def __str__(self) -> str:
        return f"<task {self.task} of {self.num_tasks}: {self.env}>"

    def _take(self, task: int) -> GymEnv:
        if not 0 <= task < self.num_tasks:
            raise EnvError(f"task {task} does not exist; there are {self.num_tasks}")
        env = self._open.pop(task, None)
        if env is None:
            while len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            env = self._factories[task]()
            self._check(env, task)
        self._open[task] = env
        return env

    def _check(self, env: GymEnv, task: int) -> None:
        if task == 0:
            return
        same = obs_spec_of(env.observation_space) == obs_spec_of(self.observation_space)
        if not same or env.action_space != self.action_space:
            env.close()
            raise EnvError(
                f"task {task} has observations {env.observation_space} and actions {env.action_space}, "
                f"but task 0 has {self.observation_space} and {self.action_space}; all tasks of a "
                "curriculum need the same spaces (pad or wrap them)"
            )
