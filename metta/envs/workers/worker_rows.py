"""The rows of one worker: environments of every group, over the shared block."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.restore.row_places import RowPlace, bring_row, row_states
from metta.envs.rows.gym_adapter import GymRows
from metta.envs.rows.row_spec import EnvFactory, GymEnv, RowSpec, build_envs, probe_reset
from metta.envs.rows.tasked_env import RowTasks, TaskedEnv
from metta.envs.workers.shared_rows import SharedRows

__all__ = ["WorkerRows"]


class WorkerRows:
    """A `GymRows` for each group; observations and results go to shared memory."""

    def __init__(
        self,
        factories: Mapping[int, EnvFactory],
        spec: RowSpec,
        shared: SharedRows,
        row_ranges: Sequence[tuple[int, int]],
    ) -> None:
        self._envs: dict[int, GymEnv] = build_envs(factories)
        if spec.probed and 0 in self._envs:
            probe_reset(self._envs[0])
        self._slices = [slice(first, stop) for first, stop in row_ranges]
        self._obs = [
            {key: array[rows] for key, array in shared.obs.items()} for rows in self._slices
        ]
        self._actions = [shared.actions[rows] for rows in self._slices]
        self._seeds = shared.seeds
        tasked = any(isinstance(env, TaskedEnv) for env in self._envs.values())
        self._tasks = (
            RowTasks(np.zeros_like(shared.next_tasks), shared.next_tasks) if tasked else None
        )
        self.groups = [
            GymRows(
                [self._envs[row] for row in range(rows.start, rows.stop)],
                spec,
                shared.arrays.part(rows),
                rows.start,
                self._tasks_of(rows),
            )
            for rows in self._slices
        ]

    def _tasks_of(self, rows: slice) -> RowTasks | None:
        return None if self._tasks is None else self._tasks.part(rows)

    def reset(self) -> None:
        """Begin episode 0 in every row, with the shared seeds."""
        for rows, group, obs in zip(self._slices, self.groups, self._obs, strict=True):
            group.reset(self._seeds[rows].tolist(), obs)

    def step(self, group: int) -> GymRows:
        """Take the shared actions in one group."""
        rows = self.groups[group]
        # a copy: an environment may keep the action it was given
        rows.step(self._actions[group].copy(), self._obs[group])
        return rows

    def begin_fresh(self, group: int, seeds: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin the episodes that come after the given ones; no action is taken."""
        rows = self.groups[group]
        rows.row_seeds[:], rows.episodes[:] = seeds, episodes
        rows.begin_fresh(self._obs[group])

    def states(self) -> list[list[dict[str, Any]]]:
        """The state of the rows of each group."""
        return [row_states(rows) for rows in self.groups]

    def bring_to(
        self, places: Mapping[int, Sequence[RowPlace]], sign_of_life: Callable[[], None]
    ) -> None:
        """Bring the rows of some groups to where they were, and write what they observe there.

        Results of steps stay as they are: a reader may still hold them.
        """
        for group, row_places in places.items():
            for row, place in enumerate(row_places):
                sign_of_life()
                bring_row(self.groups[group], row, place, self._obs[group], sign_of_life)

    def close(self) -> None:
        """Close every environment."""
        for rows in self.groups:
            rows.close()
