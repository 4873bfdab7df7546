"""`TaskFeed`: connects a curriculum with the environments that play its tasks."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from metta.curriculum import Curriculum
from metta.envs.vec_env import TaskedVecEnv, agents_per_env
from metta.errors import ConfigError, StateError
from metta.seeding import numpy_generator

__all__ = ["TaskFeed"]

_COLUMNS = ("playing", "returns", "finished")


class TaskFeed:
    """Gives every environment the task of its next episode, and the curriculum the scores.

    Tasks are drawn when an episode begins, for the one after it, with the curriculum's probabilities of
    that moment; scores are reported after each rollout. So all is a function of the curriculum's state.
    """

    def __init__(
        self, vec_env: TaskedVecEnv, curriculum: Curriculum, *, seed: int, shard: int = 0
    ) -> None:
        if vec_env.num_tasks != len(curriculum.tasks):
            raise ConfigError(
                f"the environments know {vec_env.num_tasks} tasks, the curriculum has "
                f"{len(curriculum.tasks)}; make them of its tasks: make_vec_env(curriculum.tasks, ...)"
            )
        self.vec_env, self.curriculum = vec_env, curriculum
        self._seed, self._shard = seed, shard
        self.num_draws = 0
        self._agents = agents_per_env(vec_env)
        num_envs = len(vec_env.tasks)
        self.playing = np.zeros(num_envs, np.int32)
        """``[num_envs]`` the task of each unfinished episode."""
        self.returns = np.zeros(num_envs)
        """``[num_envs]`` returns of agents whose part in it is over already, added up."""
        self.finished = np.zeros(num_envs, np.int64)
        """``[num_envs]`` number of these agents."""
        self._ends: list[tuple[int, int, int]] = []
        """(step, environment, task) of episodes that ended in this rollout."""

    def before_reset(self) -> None:
        """Every environment is about to begin anew."""
        for env in range(len(self.playing)):
            self._draw(env)

    def after_reset(self) -> None:
        """Every environment has begun its next task."""
        self.playing[:] = self.vec_env.tasks
        self.returns.fill(0.0)
        self.finished.fill(0)
        self._ends.clear()
        self.before_reset()

    def after_step(self, step: int, rows: slice, starts: np.ndarray) -> None:
        """Episodes began in some rows ``[n]`` of a group: note what ended, and draw what comes next."""
        for row in np.flatnonzero(starts[:: self._agents]).tolist():
            env = rows.start // self._agents + row
            self._ends.append((step, env, int(self.playing[env])))
            self.playing[env] = self.vec_env.tasks[env]
            self._draw(env)

    def after_rollout(
        self,
        ended: Sequence[tuple[int, int, float, int]],
        lost: Collection[tuple[int, int]] = (),
    ) -> list[tuple[int, float]]:
        """(task, score) of episodes that ended: `ended` has (step, row, return, length) of agents.

        Episodes that were lost with their worker (`lost`: step, row) have no score.
        """
        scores = []
        dropped = {(step + 1, row // self._agents) for step, row in lost}
        agents = sorted((step, row // self._agents, total) for step, row, total, _ in ended)
        place = 0
        for step, env, task in self._ends:
            while place < len(agents) and agents[place][0] <= step:
                self._add(*agents[place][1:])
                place += 1
            if self.finished[env] and (step, env) not in dropped:
                scores.append((task, float(self.returns[env] / self.finished[env])))
            self.returns[env], self.finished[env] = 0.0, 0
        for _, env, total in agents[place:]:
            self._add(env, total)
        self._ends.clear()
        return scores

    def _add(self, env: int, total: float) -> None:
        self.returns[env] += total
        self.finished[env] += 1

    def _draw(self, env: int) -> None:
        generator = numpy_generator(self._seed, "task", rank=self._shard, epoch=self.num_draws)
        self.num_draws += 1
        self.vec_env.next_tasks[env] = self.curriculum.draw(generator)

    def state_dict(self) -> dict[str, Any]:
        """Draws, and unfinished episodes; which tasks come next is the environments' state."""
        columns = {name: getattr(self, name).copy() for name in _COLUMNS}
        return {**columns, "num_draws": self.num_draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in _COLUMNS:
            column, own = np.asarray(state.get(name)), getattr(self, name)
            if column.shape != own.shape:
                raise StateError(
                    f"the saved {name} are those of {column.shape} environments, not of {own.shape}; "
                    "continue with as many as the run has"
                )
            own[:] = column
        self.num_draws = int(state["num_draws"])
