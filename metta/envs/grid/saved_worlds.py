"""Whether a saved state is one of these worlds: nothing of it is used before everything was checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from metta.envs.grid.layout import Cell, Setting, WorldArrays
from metta.errors import StateError

__all__ = ["SAVED_ARRAYS", "checked_worlds"]

SAVED_ARRAYS = (
    "settings", "reward_table", "seeds", "episodes", "draws", "tasks", "next_tasks", "steps", "missing",
    "cells", "positions", "cargo", "keys", "counts",
)  # fmt: skip
"""What a state holds; the compass follows from the cells."""

_MAX_EVENTS = 1 << 30
_MAX_DRAWS = 1 << 62
_MAX_THINGS = 4096


def checked_worlds(state: Mapping[str, Any], own: WorldArrays, radius: int) -> WorldArrays:
    """The saved arrays, if they fit `own` and describe worlds that can continue.

    They may share the memory of `state`; the compass is that of `own`.
    """
    found = {name: _fitting(state, name, getattr(own, name)) for name in SAVED_ARRAYS}
    for name in ("settings", "reward_table"):
        if not np.array_equal(found[name], getattr(own, name)):
            raise StateError(
                f"the saved worlds have other values of {name} than these tasks; continue with the tasks "
                "of the run"
            )
    worlds = WorldArrays(compass=own.compass, **found)
    num_tasks = len(worlds.settings)
    _in_range("tasks", worlds.tasks, 0, num_tasks - 1)
    _in_range("next_tasks", worlds.next_tasks, 0, num_tasks - 1)
    settings = worlds.settings[worlds.tasks]
    per_agent = settings[:, None]
    _in_range("steps", worlds.steps, 0, settings[:, Setting.HORIZON] - 1)
    _in_range("episodes", worlds.episodes, 0, _MAX_DRAWS)
    _in_range("draws", worlds.draws, 0, _MAX_DRAWS)
    _in_range("missing", worlds.missing, 0, _MAX_THINGS * settings[:, Setting.RESPAWNS])
    _in_range("cargo", worlds.cargo, 0, per_agent[..., Setting.CAPACITY])
    _in_range("keys", worlds.keys, 0, _MAX_THINGS)
    _in_range("counts", worlds.counts, 0, _MAX_EVENTS)
    _in_range("cells", worlds.cells, 0, max(Cell))
    _check_walls(worlds, radius)
    _check_agents(worlds)
    return worlds


def _fitting(state: Mapping[str, Any], name: str, own: np.ndarray) -> np.ndarray:
    array = state.get(name)
    if not isinstance(array, np.ndarray):
        raise StateError(f"the saved worlds have no array {name!r}; found {type(array).__name__}")
    if array.shape != own.shape or array.dtype != own.dtype:
        raise StateError(
            f"the saved worlds have {name} of shape {array.shape} and dtype {array.dtype}, but here they "
            f"are {own.shape} and {own.dtype}; continue with the same tasks and number of environments"
        )
    return array


def _in_range(name: str, values: np.ndarray, lowest: int, highest: Any) -> None:
    wrong = (values < lowest) | (values > highest)
    if wrong.any():
        world = int(np.argwhere(wrong)[0][0])
        raise StateError(
            f"the saved {name} of world {world} hold {values[wrong][0]}, which no such world can have; "
            "the state is damaged"
        )


def _check_walls(worlds: WorldArrays, radius: int) -> None:
    """Everything from the outermost row and column of a world on must be walls."""
    for task in np.unique(worlds.tasks):
        height, width = worlds.settings[task, [Setting.HEIGHT, Setting.WIDTH]]
        outside = np.ones(worlds.cells.shape[1:], np.bool_)
        outside[radius + 1 : radius + height - 1, radius + 1 : radius + width - 1] = False
        if (worlds.cells[worlds.tasks == task][:, outside] != Cell.WALL).any():
            raise StateError(
                f"a saved world of task {task} ({height} x {width} cells) is not walled in; the state is "
                "damaged"
            )


def _check_agents(worlds: WorldArrays) -> None:
    """Agents stand inside, each on a separate cell that is marked with it, and no other cell is."""
    num_worlds, num_cells = len(worlds.cells), worlds.cells[0].size
    _in_range("positions", worlds.positions, 0, num_cells - 1)
    cells = worlds.cells.reshape(num_worlds, -1)
    expected = np.where(worlds.cargo > 0, Cell.LOADED_AGENT, Cell.AGENT)
    is_marked = np.take_along_axis(cells, worlds.positions.astype(np.int64), axis=1) == expected
    num_marks = (cells >= Cell.AGENT).sum(axis=1)
    ordered = np.sort(worlds.positions, axis=1)
    is_distinct = (ordered[:, 1:] > ordered[:, :-1]).all(axis=1)
    wrong = ~(is_marked.all(axis=1) & is_distinct & (num_marks == worlds.positions.shape[1]))
    if wrong.any():
        raise StateError(
            f"the saved agents of world {int(np.flatnonzero(wrong)[0])} are not where its cells mark them; "
            "the state is damaged"
        )
