"""Carts with poles as a `VecEnv`: every cart is a row."""

import numpy as np
from gymnasium import spaces

from metta.envs.backends.kernel_vec_env import KernelVecEnv
from metta.envs.cartpole.carts import NUM_ACTIONS, Carts
from metta.envs.cartpole.numpy_kernels import STEEPEST, X_LIMIT

__all__ = ["CartPoleVecEnv"]

_HIGHEST = np.array([2 * X_LIMIT, np.inf, 2 * STEEPEST, np.inf], np.float32)


class CartPoleVecEnv(KernelVecEnv):
    """A `RestorableVecEnv` and `FusedVecEnv` of gymnasium's CartPole-v1, stepped in this process.

        envs = CartPoleVecEnv(64)
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    Rules, spaces, rewards and the limit of 500 steps are gymnasium's; only first states are drawn in
    another way: those of a row's k-th episode follow from its seed and k. The next episode begins in the
    step that ends one.
    """

    def __init__(
        self,
        num_envs: int,
        num_groups: int = 1,
        *,
        max_episode_steps: int = 500,
        native: bool | None = None,
    ) -> None:
        carts = Carts(num_envs, max_episode_steps, native=native)
        row_spaces = spaces.Box(-_HIGHEST, _HIGHEST), spaces.Discrete(NUM_ACTIONS)
        super().__init__(carts, "carts", row_spaces, num_envs, num_groups)
