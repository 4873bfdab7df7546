"""What was done in every row since its episode began: enough to bring it to where it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.restore.row_places import RowPlace
from metta.envs.vec_env import group_slices
from metta.errors import StateError

__all__ = ["MAX_LOGGED_STEPS", "EpisodeLog"]

MAX_LOGGED_STEPS = 1_000_000
"""An episode that grows longer is not logged any more."""
_BLOCK_STEPS = 256
_COLUMNS = ("seeds", "episodes", "lengths")


class EpisodeLog:
    """Seeds, numbers and actions of unfinished episodes; kept by the sender of the actions.

        log = EpisodeLog(num_rows=8, num_groups=1, action_space=envs.action_space)
        log.begin(seeds)                                # at a reset
        log.record(group, actions, result.starts)       # after each step of a group

    A row is *unknown* while it is in an episode whose beginning was not seen, or that is too long.
    Steps are kept as they come and entered row by row a block at a time, or when the log is read: to enter
    them one by one would take about three times as long.
    """

    def __init__(self, num_rows: int, num_groups: int, action_space: spaces.Space[Any]) -> None:
        self._slices = group_slices(num_rows, num_groups)
        self._shape = tuple(action_space.shape or ())
        self._dtype = np.dtype(action_space.dtype)
        block = (num_groups, _BLOCK_STEPS, num_rows // num_groups)
        self._new_actions = np.empty((*block, *self._shape), self._dtype)
        self._new_starts = np.empty(block, np.bool_)
        self._num_new = [0] * num_groups
        self._seeds = np.zeros(num_rows, np.int64)
        self._episodes = np.zeros(num_rows, np.int64)
        self._known = np.zeros(num_rows, np.bool_)
        self._lengths = np.zeros(num_rows, np.int64)
        self._actions: list[list[np.ndarray]] = [[] for _ in range(num_rows)]
        """Of each row, parts ``[L, ...]`` of what it did."""
        self._states: list[Mapping[str, Any] | None] = [None] * num_rows
        """Of each row, the environment's state before them; None: at the beginning of the episode."""

    def begin(self, seeds: Sequence[int] | np.ndarray) -> None:
        """Every row begins its episode 0."""
        self._place(seeds, np.zeros_like(self._episodes))

    def begin_at(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Every row is where `row_states` has it."""
        try:
            seeds, episodes = (
                np.array([state[name] for state in states], np.int64)
                for name in ("seed", "episode")
            )
            self._place(seeds, episodes)
            self._states = [state["env"] for state in states]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(f"the saved rows have no seed, episode and env: {error}") from error

    def forget(self) -> None:
        """Mark every row unknown until its next episode begins after another `begin`."""
        self._place(self._seeds, self._episodes)
        self._known.fill(False)

    def record(self, group: int, actions: np.ndarray, starts: np.ndarray) -> None:
        """Note one step of a group; `starts`: which rows are at the start of a new episode."""
        count = self._num_new[group]
        self._new_actions[group, count] = actions
        self._new_starts[group, count] = starts
        self._num_new[group] = count + 1
        if count + 1 == _BLOCK_STEPS:
            self._enter(group)

    def unknown_rows(self, *, from_start: bool = False) -> list[int]:
        """Rows that cannot be brought to where they are; `from_start`: not without a loaded state."""
        self._enter_all()
        known = self._known
        if from_start:
            known = known & [state is None for state in self._states]
        return [int(row) for row in np.flatnonzero(~known)]

    def place_of(self, row: int, task: int = 0) -> RowPlace:
        """A copy of where a known row is."""
        self._enter_all()
        seed, episode = int(self._seeds[row]), int(self._episodes[row])
        return RowPlace(seed, episode, self._states[row], self._joined([row]), task)

    def state(self) -> dict[str, np.ndarray]:
        """Seeds, numbers and lengths of the episodes ``[N]``, and the actions of all rows in a row.

        Only where all rows are known from the start of their episodes.
        """
        self._enter_all()
        return {
            "seeds": self._seeds.copy(),
            "episodes": self._episodes.copy(),
            "lengths": self._lengths.copy(),
            "actions": self._joined(range(len(self._seeds))),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; `StateError` if it is not for these rows and actions."""
        seeds, episodes, lengths = (self._column(state, name) for name in _COLUMNS)
        if int(lengths.min()) < 0 or int(lengths.max()) > MAX_LOGGED_STEPS or episodes.min() < 0:
            raise StateError(f"the saved episodes {episodes} of lengths {lengths} are impossible")
        actions = np.asarray(state.get("actions"))
        expected = (int(lengths.sum()), *self._shape)
        if actions.shape != expected or actions.dtype != self._dtype:
            raise StateError(
                f"the saved actions are {actions.shape} of {actions.dtype}, but the lengths of the "
                f"episodes and the action space make them {expected} of {self._dtype}"
            )
        self._place(seeds, episodes)
        self._lengths[:] = lengths
        self._actions = [
            [part.copy()] for part in np.split(actions, np.cumsum(lengths)[:-1].tolist())
        ]

    def _column(self, state: Mapping[str, Any], name: str) -> np.ndarray:
        column = np.asarray(state.get(name))
        if column.shape != self._seeds.shape or column.dtype != np.int64:
            raise StateError(
                f"the saved {name} are {column.shape} of {column.dtype}, not ({len(self._seeds)},) int64"
            )
        return column

    def _place(self, seeds: Sequence[int] | np.ndarray, episodes: np.ndarray) -> None:
        """Rows begin these episodes; whatever was recorded before is dropped."""
        self._seeds[:], self._episodes[:] = seeds, episodes
        self._num_new = [0] * len(self._num_new)
        self._known.fill(True)
        self._lengths.fill(0)
        self._actions = [[] for _ in self._actions]
        self._states = [None] * len(self._states)

    def _joined(self, rows: Sequence[int]) -> np.ndarray:
        nothing = np.empty((0, *self._shape), self._dtype)
        return np.concatenate([nothing, *(part for row in rows for part in self._actions[row])])

    def _enter_all(self) -> None:
        for group in range(len(self._num_new)):
            self._enter(group)

    def _enter(self, group: int) -> None:
        """Give each row its part of the new steps; what it did before its last episode is dropped."""
        count, self._num_new[group] = self._num_new[group], 0
        rows = self._slices[group]
        for place, row in enumerate(range(rows.start, rows.stop)):
            taken = self._new_actions[group, :count, place]
            began = np.flatnonzero(self._new_starts[group, :count, place])
            if len(began):
                self._episodes[row] += len(began)
                self._known[row], self._lengths[row] = True, 0
                self._actions[row], self._states[row] = [], None
                taken = taken[began[-1] + 1 :]
            if not self._known[row] or not len(taken):
                continue
            self._lengths[row] += len(taken)
            self._actions[row].append(taken.copy())
            if self._lengths[row] > MAX_LOGGED_STEPS:
                self._known[row], self._actions[row] = False, []
