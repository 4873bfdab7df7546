"""The arrays into which rows write what a step gave, and the check that they hold numbers."""

import math
from dataclasses import dataclass, replace

import numpy as np

from metta.envs.vec_env import FinalRows, ObsArrays, RolloutArrays, StepResult
from metta.errors import EnvError
from metta.spaces import ObsSpec

__all__ = ["FiniteCheck", "RowArrays"]

_QUICK_LOOK_SIZE = 8192
"""Elements; beyond it a dot product would wake up the threads of BLAS."""


@dataclass(slots=True)
class RowArrays:
    """Per-row outputs ``[n, ...]`` of a step; parts of it are views, so groups share one allocation."""

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    starts: np.ndarray
    action_mask: np.ndarray | None
    final_obs: ObsArrays
    """Filled only where a row was cut short."""

    @classmethod
    def allocate(cls, obs_spec: ObsSpec, num_rows: int, mask_size: int) -> "RowArrays":
        """Arrays in this process's own memory."""
        flags = np.zeros((3, num_rows), np.bool_)
        return cls(
            rewards=np.zeros(num_rows, np.float32),
            terminated=flags[0],
            truncated=flags[1],
            valid=np.ones(num_rows, np.bool_),
            starts=flags[2],
            action_mask=np.zeros((num_rows, mask_size), np.bool_) if mask_size else None,
            final_obs=obs_spec.zeros(num_rows),
        )

    def part(self, rows: slice) -> "RowArrays":
        """The same memory, seen by some of the rows."""
        return replace(
            self,
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            valid=self.valid[rows],
            starts=self.starts[rows],
            action_mask=None if self.action_mask is None else self.action_mask[rows],
            final_obs={key: array[rows] for key, array in self.final_obs.items()},
        )

    def begin_episodes(self) -> None:
        """What holds right after a reset of every row."""
        self.rewards.fill(0.0)
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.valid.fill(True)
        self.starts.fill(True)

    def clear_ends(self) -> None:
        """Forget which episodes ended."""
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.starts.fill(False)

    def result(self, *, any_cut: bool, infos: list[tuple[int, dict[str, float]]]) -> StepResult:
        """The step as its reader sees it; `any_cut`: some row was truncated and not terminated."""
        final = None
        if any_cut:
            rows = np.flatnonzero(self.truncated & ~self.terminated)
            final = FinalRows(rows, {key: array[rows] for key, array in self.final_obs.items()})
        return StepResult(
            self.rewards,
            self.terminated,
            self.truncated,
            self.valid,
            self.starts,
            self.action_mask,
            final,
            infos,
        )

    def result_at(
        self, rollout: RolloutArrays, step: int, infos: list[tuple[int, dict[str, float]]]
    ) -> StepResult:
        """A step of all rows of a rollout; last observations are those written here."""
        terminated, truncated = rollout.terminated[step], rollout.truncated[step]
        rows, final = np.flatnonzero(truncated & ~terminated), None
        if len(rows):
            final = FinalRows(rows, {key: array[rows] for key, array in self.final_obs.items()})
        return StepResult(
            rollout.rewards[step],
            terminated,
            truncated,
            self.valid,
            rollout.starts[step + 1],
            None,
            final,
            infos,
        )


class FiniteCheck:
    """Refuses NaN and infinity in observations and rewards before anything can learn from them."""

    def __init__(self, obs_spec: ObsSpec) -> None:
        self._keys = [leaf.key for leaf in obs_spec.leaves if leaf.dtype.kind == "f"]

    def observations(self, obs: ObsArrays, *, first_row: int, step: int) -> None:
        """Check observations ``[n, ...]``."""
        for key in self._keys:
            if not _all_finite(obs[key]):
                _refuse(f"observation {key!r}", obs[key], first_row, step)

    def final_observation(self, obs: ObsArrays, row: int, *, first_row: int, step: int) -> None:
        """Check the last observation of one episode that was cut short."""
        for key in self._keys:
            if not _all_finite(obs[key][row]):
                one = obs[key][row : row + 1]
                _refuse(f"final observation {key!r}", one, first_row + row, step)

    @staticmethod
    def rewards(rewards: np.ndarray, *, first_row: int, step: int) -> None:
        """Check rewards ``[n]``."""
        if not _all_finite(rewards):
            _refuse("reward", rewards, first_row, step)


def _all_finite(values: np.ndarray) -> bool:
    # the sum of squares is a quick first look: large but finite numbers may overflow it
    if values.size <= _QUICK_LOOK_SIZE and math.isfinite(np.vdot(values, values)):
        return True
    return bool(np.isfinite(values).all())


def _refuse(what: str, values: np.ndarray, first_row: int, step: int) -> None:
    bad = ~np.isfinite(values)
    row = int(np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))[0])
    example = np.ravel(values[row])[np.ravel(bad[row])][0]
    raise EnvError(
        f"{what} of row {first_row + row} is {example} at step {step}, which no policy can learn "
        "from; fix the environment or clip it in a wrapper"
    )
