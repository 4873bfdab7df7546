"""Players: an environment of any kind, stepped in the same way; everything they return is a copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from metta.envs.factory import row_seeds
from metta.envs.rows.action_masks import draw_action
from metta.envs.rows.gym_adapter import FiniteCheck, GymRows, RowArrays
from metta.envs.rows.row_spec import GymEnv, row_spec_of
from metta.envs.vec_env import StepResult, VecEnv
from metta.spaces import ObsSpec

__all__ = ["GymPlayer", "Leaves", "Player", "Seen", "Stepped", "VecPlayer", "draw_actions"]

Leaves = dict[str, np.ndarray]


@dataclass
class Seen:
    """What all rows see before they act."""

    obs: Leaves
    """``[N, ...]`` per leaf."""
    mask: np.ndarray | None
    """``[N, M]`` bool."""

    def row_masks(self, num_rows: int) -> Sequence[np.ndarray | None]:
        """The mask of each row."""
        return [None] * num_rows if self.mask is None else list(self.mask)


@dataclass
class Stepped(Seen):
    """What one step of all rows gave, and what they see then: where an episode ended, the next one's."""

    rewards: np.ndarray
    """``[N]`` float64."""
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    """``[N]`` bool: the row's action was taken."""
    starts: np.ndarray
    """``[N]`` bool: what is seen now is the first observation of an episode."""
    finals: dict[int, Leaves]
    """Row -> last observation of the episode that was cut there, if it is known."""

    @property
    def ended(self) -> np.ndarray:
        """``[N]`` bool: an episode ended in this step."""
        either: np.ndarray = self.terminated | self.truncated
        return either


class Player(Protocol):
    """Any environment, row by row; `EnvError` where training would stop."""

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


class GymPlayer:
    """One gymnasium environment, stepped as a trainer steps it, and left open where it fails."""

    num_rows = 1

    def __init__(self, env: GymEnv) -> None:
        spec = row_spec_of(env)
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self.obs_spec, self.mask_size = spec.obs_spec, spec.mask_size
        self._arrays = RowArrays.allocate(spec.obs_spec, 1, spec.mask_size)
        self._rows = GymRows([env], spec, self._arrays, 0)

    def reset(self, seed: int) -> Seen:
        """Begin an episode."""
        obs = self.obs_spec.zeros(1)
        self._rows.reset([seed], obs)
        return Seen(obs, _copied(self._arrays.action_mask))

    def step(self, actions: Sequence[np.ndarray]) -> Stepped:
        """Take one action."""
        obs = self.obs_spec.zeros(1)
        self._rows.step(np.stack(actions), obs)
        return _merged([obs], [self._arrays.result(any_cut=self._rows.any_cut, infos=[])])


class VecPlayer:
    """Rows of a `VecEnv`, which stays the caller's to close."""

    def __init__(self, vec_env: VecEnv) -> None:
        self._vec = vec_env
        self.observation_space, self.action_space = vec_env.observation_space, vec_env.action_space
        self.obs_spec, self.num_rows = vec_env.obs_spec, vec_env.num_rows
        self.mask_size = vec_env.mask_size
        self._finite = FiniteCheck(self.obs_spec)
        self._step = 0

    def reset(self, seed: int) -> Seen:
        """Begin an episode in every row."""
        self._step = 0
        obs = self.obs_spec.zeros(self.num_rows)
        result = self._vec.reset(row_seeds(seed, self.num_rows), obs)
        self._finite.observations(obs, first_row=0, step=0)
        return Seen(obs, _copied(result.action_mask))

    def step(self, actions: Sequence[np.ndarray]) -> Stepped:
        """Take one action per row."""
        self._step += 1
        observations, results = [], []
        for group, part in enumerate(np.split(np.stack(actions), self._vec.num_groups)):
            obs = self.obs_spec.zeros(len(part))
            self._vec.send(group, part)
            result = self._vec.recv(group, obs)
            place = {"first_row": group * len(part), "step": self._step}
            self._finite.observations(obs, **place)
            self._finite.rewards(result.rewards, **place)
            observations.append(obs)
            results.append(result)
        return _merged(observations, results)


def _merged(observations: list[Leaves], results: list[StepResult]) -> Stepped:
    """One step of several groups of equal size."""
    obs = {key: np.concatenate([one[key] for one in observations]) for key in observations[0]}
    masks = [result.action_mask for result in results if result.action_mask is not None]
    rewards, terminated, truncated, valid, starts = (
        np.concatenate([getattr(result, name) for result in results])
        for name in ("rewards", "terminated", "truncated", "valid", "starts")
    )
    finals: dict[int, Leaves] = {}
    for group, result in enumerate(results):
        if result.final is None:
            continue
        first = group * len(result.rewards)
        for place, row in enumerate(result.final.rows.tolist()):
            last = {key: leaf[place].copy() for key, leaf in result.final.obs.items()}
            finals[first + row] = last
    mask = np.concatenate(masks) if masks else None
    rewards = rewards.astype(np.float64)
    return Stepped(obs, mask, rewards, terminated, truncated, valid, starts, finals)


def _copied(mask: np.ndarray | None) -> np.ndarray | None:
    return None if mask is None else mask.copy()


def draw_actions(player: Player, seen: Seen, generator: np.random.Generator) -> list[np.ndarray]:
    """A legal action at random for each row."""
    masks = seen.row_masks(player.num_rows)
    return [draw_action(player.action_space, mask, generator) for mask in masks]
