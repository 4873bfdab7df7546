"""Players: an environment of any kind, stepped in the same way, with everything it returns kept visible."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from metta.envs.factory import row_seeds
from metta.envs.rows.action_masks import MaskLayout, draw_action, mask_layout_of
from metta.envs.rows.gym_adapter import as_reward
from metta.envs.rows.row_spec import GymEnv, episode_seed, reset_env
from metta.envs.vec_env import StepResult, VecEnv
from metta.errors import EnvError, SpaceError
from metta.spaces import MASK_KEY, ObsSpec, obs_spec_of

__all__ = [
    "Inspector",
    "PlayError",
    "Player",
    "RawPlayer",
    "Seen",
    "Stepped",
    "VecPlayer",
    "draw_actions",
]

Leaves = dict[str, np.ndarray]
_RESET_VALUES, _STEP_VALUES = 2, 5


class PlayError(EnvError):
    """The environment cannot be played; `check` names what is wrong."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


@dataclass
class Seen:
    """What all rows see before they act; arrays are copies."""

    obs: Leaves
    """``[N, ...]`` per leaf."""
    mask: np.ndarray | None
    """``[N, M]`` bool."""


@dataclass
class Stepped(Seen):
    """What one step of all rows gave, and what they see then: where an episode ended, the next one's."""

    rewards: np.ndarray
    """``[N]`` float64."""
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    finals: dict[int, Leaves] = field(default_factory=dict)
    """Row -> last observation of the episode that ended there, if it is known."""

    @property
    def ended(self) -> np.ndarray:
        """``[N]`` bool: an episode ended in this step."""
        either: np.ndarray = self.terminated | self.truncated
        return either


class Inspector(Protocol):
    """Looks at what an environment returns, as it returns it."""

    def saw(self, observation: Any, info: dict[str, Any]) -> None:
        """After each reset and step."""
        ...

    def saw_step(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """After each step, before `saw`."""
        ...


class Player(Protocol):
    """Any environment, row by row."""

    obs_spec: ObsSpec
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    num_rows: int
    mask_size: int

    def reset(self, seed: int) -> Seen:
        """Begin an episode in every row; later episodes follow from `seed` too."""
        ...

    def step(self, actions: Sequence[np.ndarray]) -> Stepped:
        """Take one action per row; rows whose episode ends begin the next one."""
        ...


class RawPlayer:
    """One gymnasium environment, which stays the caller's to close."""

    num_rows = 1

    def __init__(self, env: GymEnv, inspector: Inspector | None = None) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.obs_spec = obs_spec_of(env.observation_space)
        self.inspector = inspector
        self._seed, self._episode = 0, 0
        self._layout: MaskLayout | None = mask_layout_of(env.action_space)
        info = self._reset(0)[1]
        if self.obs_spec.mask_path is None and MASK_KEY not in info:
            self._layout = None
        self.mask_size = 0 if self._layout is None else self._layout.size

    def reset(self, seed: int) -> Seen:
        """Begin an episode."""
        self._seed, self._episode = seed, 0
        return Seen(*self._begin())

    def step(self, actions: Sequence[np.ndarray]) -> Stepped:
        """Take one action."""
        try:
            # a discrete action is a numpy scalar, as trainers pass it
            replied = self.env.step(actions[0][()])
        except Exception as error:
            raise PlayError("step", f"step() raised {type(error).__name__}: {error}") from error
        if not isinstance(replied, tuple) or len(replied) != _STEP_VALUES:
            count = f" of {len(replied)} values" if isinstance(replied, tuple) else ""
            raise PlayError(
                "step",
                f"step() returned a {type(replied).__name__}{count}; it must return (observation, reward, "
                "terminated, truncated, info)",
            )
        observation, reward, terminated, truncated, info = replied
        try:
            rewards = np.array([as_reward(reward)], np.float64)
        except EnvError as error:
            raise PlayError("rewards", str(error)) from error
        if self.inspector is not None:
            self.inspector.saw_step(reward, terminated, truncated)
            self.inspector.saw(observation, info)
        obs = self._leaves(observation)
        over = bool(terminated or truncated)
        finals = {0: {key: leaf[0].copy() for key, leaf in obs.items()}} if over else {}
        mask = None
        if over:
            self._episode += 1
            obs, mask = self._begin()
        else:
            mask = self._mask(observation, info)
        ends = np.array([bool(terminated)]), np.array([bool(truncated)])
        return Stepped(obs, mask, rewards, *ends, np.ones(1, np.bool_), finals)

    def _begin(self) -> tuple[Leaves, np.ndarray | None]:
        observation, info = self._reset(episode_seed(self._seed, self._episode))
        if self.inspector is not None:
            self.inspector.saw(observation, info)
        return self._leaves(observation), self._mask(observation, info)

    def _reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        try:
            observation, info = reset_env(self.env, 0, seed)
        except EnvError as error:
            raise PlayError("reset", str(error)) from error
        if not isinstance(info, dict):
            raise PlayError(
                "reset",
                f"reset() returned {_RESET_VALUES} values, the second a {type(info).__name__}; it must "
                "return (observation, info), and info must be a dict",
            )
        return observation, info

    def _leaves(self, observation: Any) -> Leaves:
        leaves = self.obs_spec.zeros(1)
        try:
            self.obs_spec.write(observation, leaves, 0)
        except SpaceError as error:
            raise PlayError("observation space", str(error)) from error
        return leaves

    def _mask(self, observation: Any, info: dict[str, Any]) -> np.ndarray | None:
        if self._layout is None:
            return None
        mask = np.ones((1, self._layout.size), np.bool_)
        try:
            given = (
                info[MASK_KEY]
                if self.obs_spec.mask_path is None
                else self.obs_spec.mask_of(observation)
            )
            self._layout.write(given, mask[0])
        except KeyError as error:
            raise PlayError(
                "action mask",
                f"info had an {MASK_KEY!r} at the first reset, and has none now; give it in the info of "
                "every step() and reset()",
            ) from error
        except EnvError as error:
            raise PlayError("action mask", str(error)) from error
        return mask


class VecPlayer:
    """Rows of a `VecEnv`, which stays the caller's to close."""

    def __init__(self, vec_env: VecEnv) -> None:
        self._vec = vec_env
        self.observation_space, self.action_space = vec_env.observation_space, vec_env.action_space
        self.obs_spec, self.num_rows = vec_env.obs_spec, vec_env.num_rows
        self.mask_size = vec_env.mask_size

    def reset(self, seed: int) -> Seen:
        """Begin an episode in every row."""
        obs = self.obs_spec.zeros(self.num_rows)
        result = self._vec.reset(row_seeds(seed, self.num_rows), obs)
        return Seen(obs, None if result.action_mask is None else result.action_mask.copy())

    def step(self, actions: Sequence[np.ndarray]) -> Stepped:
        """Take one action per row."""
        groups = np.split(np.stack(actions), self._vec.num_groups)
        parts = [self._step_group(group, part) for group, part in enumerate(groups)]
        merged = {key: np.concatenate([obs[key] for obs, _ in parts]) for key in parts[0][0]}
        results = [result for _, result in parts]
        masks = [result.action_mask for result in results if result.action_mask is not None]
        columns = (
            np.concatenate([getattr(result, name) for result in results])
            for name in ("rewards", "terminated", "truncated", "valid")
        )
        rewards, terminated, truncated, valid = columns
        finals: dict[int, Leaves] = {}
        for group, result in enumerate(results):
            first = group * len(groups[0])
            for place, row in enumerate(() if result.final is None else result.final.rows):
                assert result.final is not None
                finals[first + int(row)] = {
                    key: leaf[place].copy() for key, leaf in result.final.obs.items()
                }
        mask = np.concatenate(masks) if masks else None
        return Stepped(
            merged, mask, rewards.astype(np.float64), terminated, truncated, valid, finals
        )

    def _step_group(self, group: int, actions: np.ndarray) -> tuple[Leaves, StepResult]:
        obs = self.obs_spec.zeros(len(actions))
        self._vec.send(group, actions)
        return obs, self._vec.recv(group, obs)


def draw_actions(player: Player, seen: Seen, generator: np.random.Generator) -> list[np.ndarray]:
    """A legal action at random for each row."""
    masks = [None] * player.num_rows if seen.mask is None else list(seen.mask)
    return [draw_action(player.action_space, mask, generator) for mask in masks]
