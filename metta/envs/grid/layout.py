"""How grid worlds lie in memory: codes of cells, columns of tables, and the arrays of many worlds.

The C kernels repeat these numbers and take the arrays in this order.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from metta.envs.grid.config import GridWorldConfig
from metta.errors import ConfigError

__all__ = [
    "COUNT_NAMES",
    "NUM_ACTIONS",
    "Cell",
    "Setting",
    "WorldArrays",
    "as_signed",
    "table_of_rewards",
    "table_of_settings",
]

COUNT_NAMES = ("gathered", "delivered", "doors_opened", "blocked")
"""What is counted for each agent over an episode."""

NUM_ACTIONS = 5
"""Stay, north, east, south, west."""


class Cell(IntEnum):
    """What stands on a cell, as agents see it."""

    EMPTY = 0
    WALL = 1
    RESOURCE = 2
    DEPOT = 3
    DOOR = 4
    KEY = 5
    AGENT = 6
    LOADED_AGENT = 7


class Setting(IntEnum):
    """Columns of the table of settings."""

    WIDTH = 0
    HEIGHT = 1
    HORIZON = 2
    WALL_THRESHOLD = 3
    RESOURCES = 4
    DEPOTS = 5
    ROOMS = 6
    KEYS = 7
    CAPACITY = 8
    SHARED = 9
    RESPAWNS = 10
    GOAL = 11


def table_of_settings(tasks: Sequence[GridWorldConfig]) -> np.ndarray:
    """Whole numbers of the settings ``[num_tasks, 12]`` int64, in the order of `Setting`."""
    rows = [
        [task.width, task.height, task.horizon, task.wall_threshold, task.num_resources,
         task.num_depots, task.num_rooms, task.keys_placed, task.capacity, task.share_rewards,
         task.respawn, task.goal]
        for task in tasks
    ]  # fmt: skip
    return np.array(rows, np.int64)


def table_of_rewards(tasks: Sequence[GridWorldConfig]) -> np.ndarray:
    """Rewards ``[num_tasks, 4]`` float32: gather, deliver, door, and the cost of a step."""
    rows = [
        [task.gather_reward, task.deliver_reward, task.door_reward, task.step_cost]
        for task in tasks
    ]
    return np.array(rows, np.float32)


def as_signed(number: int) -> int:
    """The lowest 64 bits of a whole number as an int64."""
    low = number & 0xFFFFFFFFFFFFFFFF
    return low - (1 << 64) if low >> 63 else low


@dataclass(frozen=True, eq=False)
class WorldArrays:
    """Everything that many worlds are made of. W worlds, A agents, K tasks.

    Cells are padded with walls: `view_radius` on every side, and up to the largest task. Positions count
    cells of the padded array, row by row.
    """

    settings: np.ndarray
    """``[K, 12]`` int64, columns as in `Setting`."""
    reward_table: np.ndarray
    """``[K, 4]`` float32: gather, deliver, door, and the cost of a step."""
    seeds: np.ndarray
    """``[W]`` int64, the 64 bits of each world's seed."""
    episodes: np.ndarray
    """``[W]`` int64, episodes since the reset."""
    draws: np.ndarray
    """``[W]`` int64, random numbers taken in this episode."""
    tasks: np.ndarray
    """``[W]`` int32, what is played."""
    next_tasks: np.ndarray
    """``[W]`` int32, what will be played in the next episode."""
    steps: np.ndarray
    """``[W]`` int32, steps taken in this episode."""
    missing: np.ndarray
    """``[W]`` int32, gathered resources that still have to appear again."""
    cells: np.ndarray
    """``[W, rows, columns]`` uint8 codes; agents are marked, and stand on empty ground."""
    compass: np.ndarray
    """``[W, rows, columns]`` uint8, the octant in which the nearest depot lies; follows from `cells`."""
    positions: np.ndarray
    """``[W, A]`` int32."""
    cargo: np.ndarray
    """``[W, A]`` int32."""
    keys: np.ndarray
    """``[W, A]`` int32."""
    counts: np.ndarray
    """``[W, A, 4]`` int32, columns as in `COUNT_NAMES`."""

    @classmethod
    def allocate(cls, tasks: Sequence[GridWorldConfig], num_worlds: int) -> "WorldArrays":
        """Arrays for worlds that have not begun; the tasks must agree in agents and view."""
        if not tasks:
            raise ConfigError(
                "a grid world needs at least one task, found none; give a configuration"
            )
        _require_alike(tasks)
        agents, padding = tasks[0].num_agents, 2 * tasks[0].view_radius
        rows = max(task.height for task in tasks) + padding
        columns = max(task.width for task in tasks) + padding
        per_world, per_agent = (num_worlds,), (num_worlds, agents)
        return cls(
            settings=table_of_settings(tasks),
            reward_table=table_of_rewards(tasks),
            seeds=np.zeros(per_world, np.int64),
            episodes=np.zeros(per_world, np.int64),
            draws=np.zeros(per_world, np.int64),
            tasks=np.zeros(per_world, np.int32),
            next_tasks=np.zeros(per_world, np.int32),
            steps=np.zeros(per_world, np.int32),
            missing=np.zeros(per_world, np.int32),
            cells=np.full((num_worlds, rows, columns), Cell.WALL, np.uint8),
            compass=np.zeros((num_worlds, rows, columns), np.uint8),
            positions=np.zeros(per_agent, np.int32),
            cargo=np.zeros(per_agent, np.int32),
            keys=np.zeros(per_agent, np.int32),
            counts=np.zeros((*per_agent, len(COUNT_NAMES)), np.int32),
        )

    def in_order(self) -> tuple[np.ndarray, ...]:
        """All arrays, as the C kernels take them."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def _require_alike(tasks: Sequence[GridWorldConfig]) -> None:
    first = tasks[0]
    for number, task in enumerate(tasks):
        for name in ("num_agents", "view_radius"):
            found, expected = getattr(task, name), getattr(first, name)
            if found != expected:
                raise ConfigError(
                    f"{name}={found} in task {number}, but {name}={expected} in task 0; tasks that are "
                    f"played by one policy need equal {name}"
                )
