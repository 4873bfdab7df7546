"""Games of several lives: learning sees the loss of one as an end, episodes are whole games."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.vec_env import LIFE_LOST, ObsArrays, RestorableVecEnv, StepResult, VecEnv

__all__ = ["LostLives"]


class LostLives(VecEnvWrapper):
    """A `VecEnv` in which the loss of a life is terminal: what comes after it adds nothing to its value.

    The game goes on: nothing is reset, `starts` stays False, and `LIFE_LOST` among the numbers of the step
    tells an end of this kind from the end of an episode. All else is that of `inner`, which is closed with
    this.
    """

    def __init__(self, inner: VecEnv) -> None:
        super().__init__(inner)
        self.num_rows = inner.num_rows
        self.observation_space, self.obs_spec = inner.observation_space, inner.obs_spec

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row."""
        return self.inner.reset(seeds, obs_out)

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step of one group with actions ``[n, ...]``."""
        self.inner.send(group, actions)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step."""
        result = self.inner.recv(group, obs_out)
        rows = [row for row, numbers in result.infos if LIFE_LOST in numbers]
        if rows:
            result.terminated = result.terminated.copy()
            result.terminated[rows] = True
        return result

    def state_dict(self) -> dict[str, Any]:
        """The state of the environments."""
        inner = self.inner
        return inner.state_dict() if isinstance(inner, RestorableVecEnv) else {"class": "boundary"}

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore it."""
        inner = self.inner
        return inner.load_state_dict(state) if isinstance(inner, RestorableVecEnv) else None
