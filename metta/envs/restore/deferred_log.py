"""An `EpisodeLog` that is cheap to write to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.restore.episode_log import EpisodeLog
from metta.envs.vec_env import group_slices

__all__ = ["DeferredLog"]

_BLOCK_STEPS = 256


class DeferredLog:
    """Keeps steps as they come, and enters them into the log a block at a time, or when it is read.

    Entering steps one by one would take about three times as long.
    """

    def __init__(self, num_rows: int, num_groups: int, action_space: spaces.Space[Any]) -> None:
        self._log = EpisodeLog(num_rows, action_space)
        self._slices = group_slices(num_rows, num_groups)
        size = num_rows // num_groups
        shape = (num_groups, _BLOCK_STEPS, size, *(action_space.shape or ()))
        self._actions = np.empty(shape, action_space.dtype)
        self._starts = np.empty((num_groups, _BLOCK_STEPS, size), np.bool_)
        self._counts = [0] * num_groups

    @property
    def log(self) -> EpisodeLog:
        """The log, with every step in it."""
        for group in range(len(self._counts)):
            self._enter(group)
        return self._log

    def begin(self, seeds: Sequence[int]) -> None:
        """Every row begins its episode 0."""
        self.log.begin(seeds)

    def record(self, group: int, actions: np.ndarray, starts: np.ndarray) -> None:
        """Note one step of a group; `starts`: which rows stand at the start of a new episode."""
        count = self._counts[group]
        self._actions[group, count] = actions
        self._starts[group, count] = starts
        self._counts[group] = count + 1
        if count + 1 == _BLOCK_STEPS:
            self._enter(group)

    def _enter(self, group: int) -> None:
        count = self._counts[group]
        if count:
            self._log.record_block(
                self._slices[group], self._actions[group, :count], self._starts[group, :count]
            )
        self._counts[group] = 0
