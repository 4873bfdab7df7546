"""Carts with poles that ship with metta: gymnasium's CartPole-v1, many at once."""

from metta.envs.cartpole.cartpole_vec_env import CartPoleVecEnv
from metta.envs.cartpole.carts import native_available

__all__ = ["CartPoleVecEnv", "native_available"]
