"""Probe tasks: tiny tasks with known answers, in the spaces of the user's own environment.

Observations are two that the environment really gave, so that any network made for it runs unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.doctor.players import Leaves
from metta.envs.rows.action_masks import mask_layout_of
from metta.envs.vec_env import ObsArrays, StepResult
from metta.spaces import obs_spec_of

__all__ = ["ProbeSpaces", "ProbeTask", "ProbeVecEnv"]

_JUDGED_PARTS = 2
_WORST_ERROR = 4.0
_REACH = 0.5
"""Targets of continuous actions, in units of the half-width or of 1, whichever is less."""


@dataclass(frozen=True)
class ProbeTask:
    """The rules of a probe.

    Each episode has a cue, 0 or 1. Its first observation is that of the cue; all others are that of cue 0.
    """

    name: str
    length: int
    """Steps of an episode; then it terminates."""
    judged: int | None
    """The step whose action is judged; its reward comes with the last one. None: the reward is 1."""
    answer: str
    """What is known about it, in words."""
    masked: bool = False
    """Whether a mask forbids all wrong actions."""


@dataclass(frozen=True)
class ProbeSpaces:
    """The user's spaces, and the two observations that stand for the cues."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    cues: Leaves
    """``[2, ...]`` per leaf."""
    mask_size: int

    @property
    def targets(self) -> np.ndarray:
        """The right continuous action of each cue: ``[2, *shape]``, inside the bounds."""
        space = self.action_space
        assert isinstance(space, spaces.Box)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        reach = np.minimum(np.nan_to_num((high - low) / 2, posinf=1.0), 1.0)
        middle = np.clip(0.0, low + reach, high - reach)
        return np.stack([middle - _REACH * reach, middle + _REACH * reach])

    @property
    def upper_halves(self) -> np.ndarray:
        """Entries of the mask that are right for cue 1: ``[M]`` bool; the others are for cue 0."""
        layout = mask_layout_of(self.action_space)
        assert layout is not None
        return np.concatenate([2 * np.arange(size) >= size for size in layout.part_sizes])

    def scores(self, actions: np.ndarray, cues: np.ndarray) -> np.ndarray:
        """How right actions ``[N, ...]`` are: at most 1, and 0 for one that does not heed the cue.

        The first parts are judged only: noise in many others would hide the answer for too long.
        """
        rows = len(actions)
        if isinstance(self.action_space, spaces.Box):
            targets = self.targets.reshape(2, -1)[:, :_JUDGED_PARTS]
            reach = (targets[1] - targets[0]) / 2
            given = actions.reshape(rows, -1)[:, :_JUDGED_PARTS]
            errors = (given - targets[cues]) / np.where(reach > 0, reach, 1.0)
            return np.asarray(1.0 - np.clip(np.square(errors).mean(1), 0.0, _WORST_ERROR))
        layout = mask_layout_of(self.action_space)
        assert layout is not None
        sizes = np.array(layout.part_sizes)
        first = np.reshape(getattr(self.action_space, "start", 0), -1)
        is_upper = 2 * (actions.reshape(rows, -1) - first) >= sizes
        right = is_upper == cues[:, None].astype(np.bool_)
        judged = np.flatnonzero(sizes > 1)[:_JUDGED_PARTS]
        return np.asarray(2.0 * right[:, judged].mean(1) - 1.0)


class ProbeVecEnv:
    """A probe task as a `VecEnv`."""

    num_groups = 1
    gives_finite = True

    def __init__(self, task: ProbeTask, where: ProbeSpaces, num_rows: int) -> None:
        self.task, self._where = task, where
        self.observation_space, self.action_space = where.observation_space, where.action_space
        self.obs_spec = obs_spec_of(where.observation_space)
        self.num_rows, self.mask_size = num_rows, where.mask_size
        self.num_resets = 0
        self.judged: list[tuple[int, np.ndarray]] = []
        """Cue and action of every step that was judged."""
        self._generator = np.random.default_rng(0)
        self._cues = np.zeros(num_rows, np.int64)
        self._steps = np.zeros(num_rows, np.int64)
        self._earned = np.zeros(num_rows)
        self._actions = np.empty(0)

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row."""
        self.num_resets += 1
        self._generator = np.random.default_rng(seeds[0])
        self._begin(np.ones(self.num_rows, np.bool_))
        self._show(obs_out)
        return self._result(
            np.zeros(self.num_rows), np.ones(self.num_rows, np.bool_), is_reset=True
        )

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions for `recv`."""
        del group
        self._actions = np.array(actions)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Judge, pay and show."""
        del group
        if self.task.judged is None:
            self._earned[:] = 1.0
        else:
            scores = self._where.scores(self._actions, self._cues)
            judged = self._steps == self.task.judged
            self._earned[judged] = scores[judged]
            self.judged += zip(self._cues[judged].tolist(), self._actions[judged], strict=True)
        self._steps += 1
        over = self._steps == self.task.length
        rewards = np.where(over, self._earned, 0.0)
        self._begin(over)
        self._show(obs_out)
        return self._result(rewards, over, is_reset=False)

    def score(self) -> float:
        """How right the judged actions are, their noise left out if they are continuous."""
        if not self.judged:
            return 0.0
        cues = np.array([cue for cue, _ in self.judged])
        actions = np.stack([action for _, action in self.judged])
        if isinstance(self.action_space, spaces.Box):
            found = np.unique(cues)
            cues, actions = found, np.stack([actions[cues == cue].mean(0) for cue in found])
        return float(self._where.scores(actions, cues).mean())

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self, rows: np.ndarray) -> None:
        cues = self._generator.integers(2, size=self.num_rows)
        self._cues[rows] = cues[rows]
        self._steps[rows], self._earned[rows] = 0, 0.0

    def _show(self, obs_out: ObsArrays) -> None:
        shown = np.where(self._steps == 0, self._cues, 0)
        for key, cues in self._where.cues.items():
            obs_out[key][:] = cues[shown]

    def _result(self, rewards: np.ndarray, over: np.ndarray, *, is_reset: bool) -> StepResult:
        rows = self.num_rows
        no, yes = np.zeros(rows, np.bool_), np.ones(rows, np.bool_)
        return StepResult(
            rewards.astype(np.float32),
            no if is_reset else over,
            no.copy(),
            yes,
            over.copy(),
            self._mask(),
        )

    def _mask(self) -> np.ndarray | None:
        if not self.mask_size:
            return None
        mask = np.ones((self.num_rows, self.mask_size), np.bool_)
        if self.task.masked:
            upper = self._where.upper_halves
            mask = upper[None] == self._cues[:, None].astype(np.bool_)
            layout = mask_layout_of(self.action_space)
            assert layout is not None
            alone = np.repeat(np.array(layout.part_sizes) == 1, layout.part_sizes)
            mask |= alone
        return mask
