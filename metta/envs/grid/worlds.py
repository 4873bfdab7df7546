"""Many grid worlds in one process, stepped by C kernels or by their NumPy equivalent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.grid import numpy_kernels
from metta.envs.grid.config import GridWorldConfig
from metta.envs.grid.layout import COUNT_NAMES, NUM_ACTIONS, Cell, Setting, WorldArrays, as_signed
from metta.envs.grid.render import WorldView
from metta.envs.grid.saved_worlds import SAVED_ARRAYS, checked_worlds
from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.vec_env import RolloutArrays
from metta.errors import ConfigError, EnvError

try:
    import metta.envs.grid._native as _native
except ImportError:  # installed without a compiler: NumPy gives the same bits, more slowly
    _native = None

__all__ = ["GridWorlds", "native_available"]

_TRUNCATED = 2


def native_available() -> bool:
    """Whether the C kernels of the grid world were built."""
    return _native is not None


class GridWorlds:
    """Worlds and their arrays; rows are world * num_agents + agent.

        worlds = GridWorlds([TASKS["gather"]], num_worlds=64)
        worlds.reset(range(64), obs)
        any_cut = worlds.step(0, actions, obs, rows)

    `native` chooses the kernels: C, or NumPy; None is C where it was built.
    """

    def __init__(
        self, tasks: Sequence[GridWorldConfig], num_worlds: int, *, native: bool | None = None
    ) -> None:
        if num_worlds < 1:
            raise ConfigError(f"num_worlds={num_worlds}; ask for at least one world")
        if native and not native_available():
            raise ConfigError(
                "the C kernels of the grid world were asked for, but were not built; install a C compiler "
                "and metta again, or leave native=None"
            )
        self.arrays = WorldArrays.allocate(tasks, num_worlds)
        self.num_agents, self.radius = tasks[0].num_agents, tasks[0].view_radius
        self.observation_size = tasks[0].observation_size
        self.is_native = native_available() if native is None else native
        self._kernels: Any = _native if self.is_native else numpy_kernels
        self._in_order = self.arrays.in_order()
        self.ended_counts = np.zeros((num_worlds * self.num_agents, len(COUNT_NAMES)), np.int32)
        """What each agent of an episode that just ended did in it; columns as in `COUNT_NAMES`."""

    def reset(self, seeds: Sequence[int], obs: np.ndarray) -> None:
        """Begin the first episode of every world (one seed each) and write observations of all rows."""
        arrays = self.arrays
        if len(seeds) != len(arrays.seeds):
            raise EnvError(f"got {len(seeds)} seeds for {len(arrays.seeds)} worlds; give one each")
        self.check_next_tasks()
        arrays.seeds[:] = [as_signed(int(seed)) for seed in seeds]
        self._kernels.reset(self._in_order, self.radius, obs)

    def step(self, first: int, actions: np.ndarray, obs: np.ndarray, rows: RowArrays) -> bool:
        """Step the worlds from `first` on with actions ``[n]`` int64 and write the outputs of n rows.

        Worlds that end begin their next episode at once. True where one was truncated.
        """
        if not self.is_native:  # the C kernels look at all numbers themselves, and faster
            self.check_actions(actions)
            self.check_next_tasks()
        start = first * self.num_agents
        try:
            ends: int = self._kernels.step(
                self._in_order,
                self.radius,
                first,
                actions,
                obs,
                rows.final_obs["obs"],
                rows.rewards,
                rows.terminated,
                rows.truncated,
                rows.starts,
                self.ended_counts[start : start + len(actions)],
            )
        except ValueError:
            # nothing was changed; raise the clearer error of these checks
            self.check_actions(actions)
            self.check_next_tasks()
            raise
        return bool(ends & _TRUNCATED)

    def run(
        self, actor: object, rollout: RolloutArrays, first: int, final_obs: np.ndarray
    ) -> tuple[int, bool]:
        """Steps of all worlds with an actor, from `first` on, until an episode ends.

        The next step, and whether one ended in the last.
        """
        arrays = rollout.in_order()
        try:
            following, ends = self._kernels.run(
                self._in_order, self.radius, actor, arrays, first, final_obs, self.ended_counts
            )
        except ValueError:
            self.check_next_tasks()
            raise
        return following, bool(ends)

    def check_actions(self, actions: np.ndarray) -> None:
        """Refuse numbers that are not actions."""
        # seen as unsigned, negative numbers are large ones
        if actions.view(np.uint64).max(initial=0) >= NUM_ACTIONS:
            row = int(np.flatnonzero((actions < 0) | (actions >= NUM_ACTIONS))[0])
            raise EnvError(
                f"got action {actions[row]} in row {row}; actions are 0 (stay), 1 (north), 2 (east), "
                "3 (south) and 4 (west)"
            )

    def check_next_tasks(self) -> None:
        """Refuse numbers that are not tasks."""
        tasks, num_tasks = self.arrays.next_tasks, len(self.arrays.settings)
        if tasks.view(np.uint32).max() >= num_tasks:
            world = int(np.flatnonzero((tasks < 0) | (tasks >= num_tasks))[0])
            raise EnvError(
                f"next_tasks[{world}] is {tasks[world]}, but tasks have the numbers 0 to {num_tasks - 1}"
            )

    def saved(self) -> dict[str, np.ndarray]:
        """A copy of the state of every world."""
        return {name: getattr(self.arrays, name).copy() for name in SAVED_ARRAYS}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `saved` returned; `StateError`, and nothing changes, if it does not fit."""
        saved = checked_worlds(state, self.arrays, self.radius)
        for name in SAVED_ARRAYS:
            getattr(self.arrays, name)[...] = getattr(saved, name)
        self._kernels.refresh(self._in_order, self.radius)

    def view(self, index: int) -> WorldView:
        """A copy of one world as it is now, to be drawn."""
        arrays = self.arrays
        if not 0 <= index < len(arrays.tasks):
            raise EnvError(f"world {index} does not exist; there are {len(arrays.tasks)}")
        settings = arrays.settings[arrays.tasks[index]]
        height, width = int(settings[Setting.HEIGHT]), int(settings[Setting.WIDTH])
        inside = slice(self.radius, self.radius + height), slice(self.radius, self.radius + width)
        cells = arrays.cells[index][inside].copy()
        cells[cells >= Cell.AGENT] = Cell.EMPTY
        places = np.stack(np.divmod(arrays.positions[index], arrays.cells.shape[2]), axis=1)
        return WorldView(
            cells=cells,
            agents=places - self.radius,
            cargo=arrays.cargo[index].copy(),
            keys=arrays.keys[index].copy(),
            step=int(arrays.steps[index]),
            task=int(arrays.tasks[index]),
        )
