"""Many carts with poles in one process, moved by C kernels or by their NumPy equivalent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.cartpole import numpy_kernels
from metta.envs.cartpole.numpy_kernels import STEEPEST, X_LIMIT
from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.vec_env import RolloutArrays
from metta.errors import ConfigError, EnvError, StateError

try:
    import metta.envs.cartpole._native as _native
except ImportError:  # installed without a compiler: NumPy gives the same bits, more slowly
    _native = None

__all__ = ["Carts", "native_available"]

NUM_ACTIONS = 2
_MAX_LENGTH = 1_000_000_000
_TRUNCATED = 2
_MAX_EPISODES = 1 << 62
_LOWEST_SEED, _ALL_SEEDS = -(1 << 63), 1 << 64
_SAVED = ("state", "seeds", "episodes", "steps")


def native_available() -> bool:
    """Whether the C kernels of the carts were built."""
    return _native is not None


class Carts:
    """Carts and their arrays.

        carts = Carts(64, max_episode_steps=500)
        carts.reset(range(64), obs)
        any_cut = carts.step(0, actions, obs, rows)

    `native` chooses the kernels: C, or NumPy; None is C where it was built.
    """

    def __init__(
        self, num_rows: int, max_episode_steps: int, *, native: bool | None = None
    ) -> None:
        if num_rows < 1 or not 1 <= max_episode_steps <= _MAX_LENGTH:
            raise ConfigError(
                f"num_envs={num_rows} and max_episode_steps={max_episode_steps}; both must be at least 1, "
                f"and episodes have at most {_MAX_LENGTH} steps"
            )
        if native and not native_available():
            raise ConfigError(
                "the C kernels of the carts were asked for, but were not built; install a C compiler and "
                "metta again, or leave native=None"
            )
        self.max_episode_steps = max_episode_steps
        self.state = np.zeros((4, num_rows))
        """``[4, N]`` place, speed, angle and turn."""
        self.seeds = np.zeros(num_rows, np.int64)
        self.episodes = np.zeros(num_rows, np.int64)
        self.steps = np.zeros(num_rows, np.int32)
        self.is_native = native_available() if native is None else native
        self._kernels: Any = _native if self.is_native else numpy_kernels
        self._in_order = (self.state, self.seeds, self.episodes, self.steps)

    def reset(self, seeds: Sequence[int], obs: np.ndarray) -> None:
        """Begin the first episode of every row, one seed each."""
        self.seeds[:] = [(int(seed) - _LOWEST_SEED) % _ALL_SEEDS + _LOWEST_SEED for seed in seeds]
        self._kernels.reset(self._in_order, self.max_episode_steps, obs)

    def step(self, first: int, actions: np.ndarray, obs: np.ndarray, rows: RowArrays) -> bool:
        """Step the rows from `first` on with actions ``[n]`` int64 and write their outputs.

        Rows that end begin their next episode at once. True where one was truncated, not terminated.
        """
        ends: int = self._kernels.step(
            self._in_order,
            self.max_episode_steps,
            first,
            actions,
            obs,
            rows.final_obs["obs"],
            rows.rewards,
            rows.terminated,
            rows.truncated,
            rows.starts,
        )
        return bool(ends & _TRUNCATED)

    def run(
        self, actor: object, rollout: RolloutArrays, first: int, final_obs: np.ndarray
    ) -> tuple[int, bool]:
        """Steps with an actor, from `first` on; the next step, and whether the last one cut an episode."""
        arrays = rollout.in_order()
        following, ends = self._kernels.run(
            self._in_order, self.max_episode_steps, actor, arrays, first, final_obs
        )
        return following, bool(ends & _TRUNCATED)

    @staticmethod
    def check_actions(actions: np.ndarray) -> None:
        """Refuse numbers that are not actions."""
        # seen as unsigned, negative numbers are large ones
        if actions.view(np.uint64).max(initial=0) >= NUM_ACTIONS:
            row = int(np.flatnonzero((actions < 0) | (actions >= NUM_ACTIONS))[0])
            raise EnvError(
                f"got action {actions[row]} in row {row}; actions are 0 (push left) and 1 (push right)"
            )

    def saved(self) -> dict[str, Any]:
        """A copy of the state of every cart."""
        arrays = {name: getattr(self, name).copy() for name in _SAVED}
        return {**arrays, "max_episode_steps": self.max_episode_steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `saved` returned; `StateError`, and nothing changes, if it does not fit."""
        limit = state.get("max_episode_steps")
        if limit != self.max_episode_steps:
            raise StateError(
                f"the saved episodes have at most {limit} steps, these {self.max_episode_steps}; continue "
                "with the max_episode_steps of the run"
            )
        found = {name: self._fitting(state, name) for name in _SAVED}
        place, angle = np.abs(found["state"][0]), np.abs(found["state"][2])
        is_sound = (
            np.isfinite(found["state"]).all()
            and (place <= X_LIMIT).all()
            and (angle <= STEEPEST).all()
            and ((found["steps"] >= 0) & (found["steps"] < self.max_episode_steps)).all()
            and ((found["episodes"] >= 0) & (found["episodes"] <= _MAX_EPISODES)).all()
        )
        if not is_sound:
            raise StateError(
                "the saved carts hold numbers that no unfinished episode can have; the state is damaged"
            )
        for name, array in found.items():
            getattr(self, name)[...] = array

    def _fitting(self, state: Mapping[str, Any], name: str) -> np.ndarray:
        array, own = state.get(name), getattr(self, name)
        if not isinstance(array, np.ndarray):
            raise StateError(
                f"the saved carts have no array {name!r}; found {type(array).__name__}"
            )
        if array.shape != own.shape or array.dtype != own.dtype:
            raise StateError(
                f"the saved carts have {name} of shape {array.shape} and dtype {array.dtype}, but here "
                f"they are {own.shape} and {own.dtype}; continue with the same number of environments"
            )
        return array
