"""Carts with poles as a `VecEnv`: every cart is a row."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.cartpole.carts import NUM_ACTIONS, Carts
from metta.envs.cartpole.numpy_kernels import STEEPEST, X_LIMIT
from metta.envs.restore.saved_envs import load_arrays, state_of_arrays, support_of_arrays
from metta.envs.rows.row_arrays import RowArrays
from metta.envs.vec_env import (
    ObsArrays,
    RestoreClass,
    RestoreSupport,
    RolloutArrays,
    StepResult,
    group_slices,
)
from metta.errors import EnvError
from metta.spaces import obs_spec_of

__all__ = ["CartPoleVecEnv"]

_HIGHEST = np.array([2 * X_LIMIT, np.inf, 2 * STEEPEST, np.inf], np.float32)


class CartPoleVecEnv:
    """A `RestorableVecEnv` and `FusedVecEnv` of gymnasium's CartPole-v1, stepped in this process.

        envs = CartPoleVecEnv(64)
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    Rules, spaces, rewards and the limit of 500 steps are gymnasium's; only first states are drawn in
    another way: those of a row's k-th episode follow from its seed and k. The next episode begins in the
    step that ends one.
    """

    gives_finite = True

    def __init__(
        self,
        num_envs: int,
        num_groups: int = 1,
        *,
        max_episode_steps: int = 500,
        native: bool | None = None,
    ) -> None:
        self._carts = Carts(num_envs, max_episode_steps, native=native)
        self._slices = group_slices(num_envs, num_groups)
        self.observation_space: spaces.Space[Any] = spaces.Box(-_HIGHEST, _HIGHEST)
        self.action_space: spaces.Space[Any] = spaces.Discrete(NUM_ACTIONS)
        self.obs_spec = obs_spec_of(self.observation_space)
        self.num_rows, self.num_groups, self.mask_size = num_envs, num_groups, 0
        self._group_size = num_envs // num_groups
        self._order = CallOrder(num_groups)
        self._arrays = RowArrays.allocate(self.obs_spec, num_envs, 0)
        self._group_arrays = [self._arrays.part(rows) for rows in self._slices]
        self._actions = np.zeros((num_groups, self._group_size), np.int64)
        self._restore_class: RestoreClass = "boundary"

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    @property
    def is_fusable(self) -> bool:
        """Whether the C kernels move the carts."""
        return self._carts.is_native

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row; a step under way is dropped."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._order.reset()
        target = self._target(obs_out, self.num_rows)
        self._carts.reset(seeds, target)
        self._hand_over(target, obs_out)
        self._arrays.begin_episodes()
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[n]`` for `recv`, which steps."""
        checked = check_actions(actions, self._group_size, self.action_space)
        taken = np.array(checked, np.int64)
        self._carts.check_actions(taken)
        self._order.send(group)
        self._actions[group] = taken

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Step the rows of the group; observations are written straight into `obs_out`."""
        self._order.recv(group)
        target, arrays = self._target(obs_out, self._group_size), self._group_arrays[group]
        any_cut = self._carts.step(self._slices[group].start, self._actions[group], target, arrays)
        self._hand_over(target, obs_out)
        self._order.received(group)
        return arrays.result(any_cut=any_cut, infos=[])

    def run_steps(
        self, actor: object, rollout: RolloutArrays, first_step: int
    ) -> tuple[int, StepResult | None]:
        """Steps of all rows with an actor, until one cuts episodes short; see `FusedVecEnv`."""
        self._order.require_ready("run_steps()")
        final_obs = self._arrays.final_obs["obs"]
        following, any_cut = self._carts.run(actor, rollout, first_step, final_obs)
        if not any_cut:
            return following, None
        return following, self._arrays.result_at(rollout, following - 1, infos=[])

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """`snapshot`, unless less was asked for: the whole state is in arrays."""
        support = support_of_arrays(wanted, "carts")
        self._restore_class = support.restore_class
        return support

    def state_dict(self) -> dict[str, Any]:
        """Where every cart stands; `boundary` before the first reset."""
        return state_of_arrays(self._order, self._restore_class, self._carts.saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Bring every cart to where it stood; after a `boundary`, `reset` comes next."""
        load_arrays(state, self._order, self._arrays, self._carts.load, "carts")
        return None

    def close(self) -> None:
        """Nothing may follow; there is nothing to release."""
        self._order.close()

    def _target(self, obs_out: ObsArrays, num_rows: int) -> np.ndarray:
        """The array that kernels write into: the caller's own, where it can be."""
        out = obs_out["obs"]
        if out.shape != (num_rows, 4) or out.dtype != np.float32:
            raise EnvError(
                f"observations are written as {(num_rows, 4)} float32, but obs_out has {out.shape} "
                f"{out.dtype}; allocate it with obs_spec.zeros({num_rows})"
            )
        return out if out.flags.c_contiguous else np.empty(out.shape, np.float32)

    @staticmethod
    def _hand_over(target: np.ndarray, obs_out: ObsArrays) -> None:
        out = obs_out["obs"]
        if target is not out:
            out[...] = target
