"""The actions of unfinished episodes: with its seed, all that is needed to live an episode again."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import StateError

__all__ = ["MAX_LOGGED_STEPS", "EpisodeLog"]

MAX_LOGGED_STEPS = 1_000_000
"""An episode that grows longer is not logged any more."""
_FIRST_CAPACITY = 256
_COLUMNS = ("seeds", "episodes", "lengths")


class EpisodeLog:
    """What was done in every row since its episode began; kept by whoever sends the actions.

        log = EpisodeLog(num_rows=8, action_space=envs.action_space)
        log.begin(seeds)                                # at a reset
        log.record(rows, actions, result.starts)        # after each step of a group

    A row is *unknown* while it stands in an episode whose beginning was not seen, or that is too long.
    """

    def __init__(self, num_rows: int, action_space: spaces.Space[Any]) -> None:
        self._shape = tuple(action_space.shape or ())
        self._dtype = np.dtype(action_space.dtype)
        self._rows = np.arange(num_rows)
        self.seeds = np.zeros(num_rows, np.int64)
        """The seeds of the last reset."""
        self.episodes = np.zeros(num_rows, np.int64)
        """The number of each row's present episode since then."""
        self._lengths = np.zeros(num_rows, np.int64)
        self._known = np.zeros(num_rows, np.bool_)
        self._actions = self._allocate(_FIRST_CAPACITY)

    def begin(self, seeds: Sequence[int] | np.ndarray) -> None:
        """Every row begins its episode 0."""
        self.join(seeds, np.zeros_like(self.episodes))
        self._known.fill(True)

    def join(self, seeds: Sequence[int] | np.ndarray, episodes: np.ndarray) -> None:
        """Rows stand somewhere in these episodes: they are unknown until their next ones begin."""
        self.seeds[:] = seeds
        self.episodes[:] = episodes
        self._lengths.fill(0)
        self._known.fill(False)

    def record(self, rows: slice, actions: np.ndarray, starts: np.ndarray) -> None:
        """Note one step of some rows; `starts`: which of them stand at the start of a new episode."""
        lengths, known = self._lengths[rows], self._known[rows]
        if int(lengths.max()) >= self._actions.shape[1]:
            self._make_room(rows)
        self._actions[self._rows[rows], lengths] = actions
        lengths += known
        if starts.any():
            self.episodes[rows] += starts
            lengths[starts] = 0
            known[starts] = True

    def record_block(self, rows: slice, actions: np.ndarray, starts: np.ndarray) -> None:
        """The same for K steps at once: actions ``[K, n, ...]`` and starts ``[K, n]``."""
        for place, row in enumerate(range(rows.start, rows.stop)):
            taken, began = actions[:, place], np.flatnonzero(starts[:, place])
            if len(began):
                self.episodes[row] += len(began)
                self._lengths[row], self._known[row] = 0, True
                taken = taken[began[-1] + 1 :]
            if not self._known[row]:
                continue
            length = int(self._lengths[row])
            while length + len(taken) > self._actions.shape[1] and self._known[row]:
                self._lengths[row] = self._actions.shape[1]
                self._make_room(slice(row, row + 1))
            if self._known[row]:
                self._actions[row, length : length + len(taken)] = taken
                self._lengths[row] = length + len(taken)

    def unknown_rows(self) -> list[int]:
        """Rows whose episode cannot be lived again."""
        return [int(row) for row in np.flatnonzero(~self._known)]

    def actions_of(self, row: int) -> np.ndarray:
        """The actions ``[L, ...]`` of a row's unfinished episode, in memory of their own."""
        return self._actions[row, : self._lengths[row]].copy()

    def state(self) -> dict[str, np.ndarray]:
        """Seeds, numbers and lengths of the episodes ``[N]``, and the actions of all rows in a row.

        A length is -1 where the row is unknown.
        """
        kept = [self._actions[row, : self._lengths[row]] for row in self._rows]
        return {
            "seeds": self.seeds.copy(),
            "episodes": self.episodes.copy(),
            "lengths": np.where(self._known, self._lengths, -1),
            "actions": np.concatenate(kept),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; `StateError` where it is not for these rows and actions."""
        seeds, episodes, lengths = (self._column(state, name) for name in _COLUMNS)
        actions = np.asarray(state.get("actions"))
        counts = np.maximum(lengths, 0)
        expected = (int(counts.sum()), *self._shape)
        if actions.shape != expected or actions.dtype != self._dtype:
            raise StateError(
                f"the saved actions are {actions.shape} of {actions.dtype}, but the lengths of the "
                f"episodes and the action space make them {expected} of {self._dtype}"
            )
        if int(counts.max()) > MAX_LOGGED_STEPS or int(episodes.min()) < 0:
            raise StateError(f"the saved episodes {episodes} of lengths {lengths} cannot be")
        self.join(seeds, episodes)
        self._lengths[:] = counts
        self._known[:] = lengths >= 0
        self._actions = self._allocate(max(_FIRST_CAPACITY, int(counts.max())))
        for row, part in enumerate(np.split(actions, np.cumsum(counts)[:-1])):
            self._actions[row, : len(part)] = part

    def _column(self, state: Mapping[str, Any], name: str) -> np.ndarray:
        column = np.asarray(state.get(name))
        if column.shape != self._rows.shape or column.dtype != np.int64:
            raise StateError(
                f"the saved {name} are {column.shape} of {column.dtype}, not ({len(self._rows)},) int64"
            )
        return column

    def _make_room(self, rows: slice) -> None:
        """Double what rows can hold; a row at the limit becomes unknown instead."""
        too_long = self._lengths[rows] >= MAX_LOGGED_STEPS
        self._known[rows] &= ~too_long
        self._lengths[rows][too_long] = 0
        capacity = self._actions.shape[1]
        if int(self._lengths[rows].max()) < capacity:
            return
        old, self._actions = self._actions, self._allocate(min(2 * capacity, MAX_LOGGED_STEPS))
        for row, length in enumerate(self._lengths):
            self._actions[row, :length] = old[row, :length]

    def _allocate(self, capacity: int) -> np.ndarray:
        # not touched: rows with short episodes cost no memory, however long other rows' are
        return np.empty((len(self._rows), capacity, *self._shape), self._dtype)
