"""Rewards of different games on one scale: learning sees their signs, episodes count what the game gave."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.vec_env import (
    EPISODE_RETURN,
    ObsArrays,
    RestorableVecEnv,
    StepResult,
    VecEnv,
    group_slices,
)

__all__ = ["ClippedRewards"]

_RETURNS = "raw_returns"


class ClippedRewards(VecEnvWrapper):
    """A `VecEnv` whose rewards are clipped to -1..1; the raw return of an episode is reported at its end.

    All else is that of `inner`, which is closed with this.
    """

    def __init__(self, inner: VecEnv) -> None:
        super().__init__(inner)
        self.num_rows = inner.num_rows
        self.observation_space, self.obs_spec = inner.observation_space, inner.obs_spec
        self._slices = group_slices(self.num_rows, self.num_groups)
        self._returns = np.zeros(self.num_rows)
        """``[num_rows]`` of unfinished episodes, before clipping."""

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row."""
        self._returns[:] = 0.0
        return self.inner.reset(seeds, obs_out)

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step of one group with actions ``[n, ...]``."""
        self.inner.send(group, actions)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step."""
        result = self.inner.recv(group, obs_out)
        returns = self._returns[self._slices[group]]
        if result.lost is not None:
            returns[result.lost] = 0.0
        returns += np.where(result.valid, result.rewards, 0.0)
        np.clip(result.rewards, -1.0, 1.0, out=result.rewards)
        ended = np.flatnonzero((result.terminated | result.truncated) & result.valid)
        if len(ended):
            numbers = dict(result.infos)
            result.infos = [
                *((row, own) for row, own in result.infos if row not in ended),
                *(
                    (row, {**numbers.get(row, {}), EPISODE_RETURN: float(returns[row])})
                    for row in ended.tolist()
                ),
            ]
            returns[ended] = 0.0
        return result

    def state_dict(self) -> dict[str, Any]:
        """The state of the environments, and the returns so far."""
        inner = self.inner
        own = inner.state_dict() if isinstance(inner, RestorableVecEnv) else {"class": "boundary"}
        return {**own, _RETURNS: self._returns.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore both."""
        own = dict(state)
        self._returns[:] = own.pop(_RETURNS)
        return self.inner.load_state_dict(own) if isinstance(self.inner, RestorableVecEnv) else None
