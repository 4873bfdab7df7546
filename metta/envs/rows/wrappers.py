"""Wrappers that settings name, around one environment: Gymnasium's, and those that it lacks."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    RescaleAction,
    RescaleObservation,
    TransformObservation,
    TransformReward,
)

from metta.envs.rows.row_spec import GymEnv
from metta.errors import EnvError
from metta.train.wrappers import WRAPPERS, read_wrapper

__all__ = ["RepeatAction", "wrap_env"]


def wrap_env(env: GymEnv, wrappers: Sequence[str]) -> GymEnv:
    """The environment in its wrappers, the first one innermost; `EnvError` names one that does not fit."""
    outer = env
    for text in wrappers:
        name, arguments = read_wrapper(text)
        try:
            outer = _maker_of(name)(outer, **arguments)
            # some find out late that they do not fit, when their spaces are asked for
            _ = outer.observation_space, outer.action_space
        except Exception as error:
            seen, done = _brief(outer.observation_space), _brief(outer.action_space)
            raise EnvError(
                f"the wrapper {text} does not fit {outer}, which has observations {seen} and actions "
                f"{done}: {error or type(error).__name__}; change "
                "trainer.curriculum.wrappers, which are applied in their order"
            ) from error
    return outer


def _brief(space: spaces.Space[Any]) -> str:
    """A space on one line: large ones print their bounds."""
    return f"{type(space).__name__}({space.shape}, {space.dtype})" if space.shape else str(space)


def _maker_of(name: str) -> Any:
    maker = WRAPPERS[name].maker
    return _OWN[name] if maker is None else getattr(gymnasium.wrappers, maker)


def _resize_observation(env: GymEnv, height: int, width: int) -> GymEnv:
    """Images ``[H, W]`` or ``[H, W, C]`` of numbers as images of this size, by means of areas."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        raise ValueError("it resizes images, which are boxes of shape (H, W) or (H, W, C)")
    rows, columns = _area_shares(space.shape[0], height), _area_shares(space.shape[1], width)
    dtype, low, high = np.dtype(space.dtype), space.low.min(), space.high.max()

    def resize(image: np.ndarray) -> np.ndarray:
        pixels = np.asarray(image, np.float32)
        made: np.ndarray = np.einsum("hi,ij...->hj...", rows, pixels, optimize=True)
        made = np.einsum("wj,hj...->hw...", columns, made, optimize=True)
        made = np.rint(made) if dtype.kind in "iu" else made
        # a mean may pass the bound by a rounding
        bounded: np.ndarray = np.clip(made, low, high).astype(dtype)
        return bounded

    shape = (height, width, *space.shape[2:])
    return TransformObservation(env, resize, spaces.Box(low, high, shape, dtype.type))


def _area_shares(before: int, after: int) -> np.ndarray:
    """``[after, before]`` how much of each new pixel an old one covers; rows add up to 1."""
    edges = np.linspace(0.0, before, after + 1)[:, None]
    starts = np.arange(before)
    overlap = np.minimum(edges[1:], starts + 1) - np.maximum(edges[:-1], starts)
    shares: np.ndarray = np.clip(overlap, 0.0, None) * (after / before)
    return shares.astype(np.float32)


def _rescale_observation(env: GymEnv, min_obs: float, max_obs: float) -> GymEnv:
    """Bounded numbers between other bounds; gymnasium would round pixels to whole numbers."""
    kind = np.dtype(env.observation_space.dtype)
    if kind.kind != "f":
        raise ValueError(
            f"it scales float observations, and these are {kind}; leave it out for images, which the "
            "network scales"
        )
    return RescaleObservation(env, kind.type(min_obs), kind.type(max_obs))


def _rescale_action(env: GymEnv, min_action: float, max_action: float) -> GymEnv:
    """Actions between these bounds, in the type of the environment's own."""
    kind = np.dtype(env.action_space.dtype).type
    return RescaleAction(env, kind(min_action), kind(max_action))


def _scale_reward(env: GymEnv, scale: float, shift: float = 0.0) -> GymEnv:
    """Rewards times `scale`, plus `shift`."""
    return TransformReward(env, lambda reward: scale * float(reward) + shift)


def _sign_reward(env: GymEnv) -> GymEnv:
    """Rewards of -1, 0 or 1."""
    return TransformReward(env, lambda reward: float(np.sign(float(reward))))


class RepeatAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action `num_repeats` times, or until the episode ends; rewards are added up."""

    def __init__(self, env: GymEnv, num_repeats: int) -> None:
        super().__init__(env)
        self._num_repeats = num_repeats

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Several steps as one; observation and info are those of the last."""
        total = 0.0
        for _ in range(self._num_repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info

    def get_state(self) -> None:
        """It keeps nothing between steps."""

    def set_state(self, state: None) -> None:
        """Nothing to restore."""


_OWN: dict[str, Any] = {
    "RepeatAction": RepeatAction,
    "RescaleAction": _rescale_action,
    "RescaleObservation": _rescale_observation,
    "ResizeObservation": _resize_observation,
    "ScaleReward": _scale_reward,
    "SignReward": _sign_reward,
}
