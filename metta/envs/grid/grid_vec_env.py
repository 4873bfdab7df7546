"""Grid worlds as a `VecEnv`: every agent of every world is a row."""

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces

from metta.envs.backends.kernel_vec_env import KernelVecEnv
from metta.envs.grid.config import GridWorldConfig
from metta.envs.grid.layout import COUNT_NAMES, NUM_ACTIONS
from metta.envs.grid.render import WorldView
from metta.envs.grid.worlds import GridWorlds
from metta.envs.vec_env import ObsArrays, StepResult

__all__ = ["GridVecEnv"]

_NUM_CODES = 8


class GridVecEnv(KernelVecEnv):
    """A `RestorableVecEnv`, `TaskedVecEnv` and `FusedVecEnv` of grid worlds, stepped in this process.

        envs = GridVecEnv([TASKS["gather"], TASKS["maze"]], num_envs=64)
        envs.next_tasks[32:] = 1
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    Row world * agents_per_env + agent is one agent. It sees the cells around it (codes of `Cell`; outside
    of the world is wall) and then four numbers from 0 to 7: cargo, keys, the octant in which the nearest
    depot lies (0 is north, clockwise), and the clock. It may stay or go north, east, south or west. All
    agents of a world end together: terminated at the goal, truncated at the horizon; the next episode
    begins in the same step. A world's k-th episode follows from its seed (that of its first row) and k.
    """

    _worlds: GridWorlds

    def __init__(
        self,
        tasks: Sequence[GridWorldConfig],
        num_envs: int,
        num_groups: int = 1,
        *,
        native: bool | None = None,
    ) -> None:
        worlds = GridWorlds(tasks, num_envs, native=native)
        codes = spaces.MultiDiscrete([_NUM_CODES] * worlds.observation_size, dtype=np.uint8)
        row_spaces = codes, spaces.Discrete(NUM_ACTIONS)
        super().__init__(worlds, "grid worlds", row_spaces, num_envs, num_groups, worlds.num_agents)
        self.num_tasks = len(tasks)
        self._tasks = worlds.arrays.tasks.view()
        self._tasks.flags.writeable = False

    @property
    def tasks(self) -> np.ndarray:
        """``[num_envs]`` int32, what each world plays now; not writable."""
        return self._tasks

    @property
    def next_tasks(self) -> np.ndarray:
        """``[num_envs]`` int32, the task of each world's next episode; write to it between steps."""
        return self._worlds.arrays.next_tasks

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every world; a world takes the seed of its first row."""
        self._worlds.check_next_tasks()
        return super().reset(seeds, obs_out)

    def view(self, env_index: int) -> WorldView:
        """One world as it is now, to be drawn."""
        return self._worlds.view(env_index)

    def _infos(self, starts: np.ndarray, first_row: int) -> list[tuple[int, dict[str, float]]]:
        counts = self._worlds.ended_counts[first_row:]
        return [
            (row, dict(zip(COUNT_NAMES, map(float, counts[row].tolist()), strict=True)))
            for row in np.flatnonzero(starts).tolist()
        ]
