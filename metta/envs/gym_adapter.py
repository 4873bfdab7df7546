"""Gymnasium environments as rows: one environment, one row, reset in the step that ends its episode."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from metta.envs.action_masks import MaskLayout, mask_layout_of
from metta.envs.call_order import check_action_space
from metta.envs.row_arrays import FiniteCheck, RowArrays
from metta.envs.vec_env import ObsArrays
from metta.errors import EnvError
from metta.spaces import MASK_KEY, ObsSpec, obs_spec_of

__all__ = [
    "EnvFactory",
    "GymEnv",
    "GymRows",
    "RowSpec",
    "as_number",
    "as_reward",
    "build_env",
    "build_envs",
    "probe_reset",
    "row_spec_of",
]

GymEnv = gymnasium.Env[Any, Any]
EnvFactory = Callable[[], GymEnv]

_PROBE_SEED = 0


@dataclass(frozen=True)
class RowSpec:
    """What every row of a vectorised environment has in common."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    obs_spec: ObsSpec
    mask_layout: MaskLayout | None
    """None where no masks are given."""
    probed: bool
    """Whether one reset of the first row was needed to find out about masks."""

    @property
    def mask_size(self) -> int:
        """Entries of a mask, 0 where there is none."""
        return self.mask_layout.size if self.mask_layout is not None else 0

    def check(self, env: GymEnv, row: int) -> None:
        """Refuse an environment unlike the first row's (bounds of observations may differ)."""
        same_observations = obs_spec_of(env.observation_space) == self.obs_spec
        if same_observations and env.action_space == self.action_space:
            return
        raise EnvError(
            f"row {row} has observations {env.observation_space} and actions {env.action_space}, but "
            f"row 0 has {self.observation_space} and {self.action_space}; all environments of one run "
            "need the same spaces (pad or wrap them)"
        )


def build_env(factory: EnvFactory, row: int) -> GymEnv:
    """The environment of one row."""
    try:
        env = factory()
    except Exception as error:
        raise EnvError(
            f"the environment of row {row} could not be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise EnvError(
            f"the factory of row {row} returned a {type(env).__name__}; it must return a new "
            "gymnasium.Env at each call"
        )
    return env


def build_envs(factories: Mapping[int, EnvFactory]) -> dict[int, GymEnv]:
    """The environments of some rows; those already made are closed when one cannot be made."""
    envs: dict[int, GymEnv] = {}
    rows_by_env: dict[int, int] = {}
    with ExitStack() as undo:
        for row, factory in factories.items():
            envs[row] = build_env(factory, row)
            undo.callback(envs[row].close)
            first = rows_by_env.setdefault(id(envs[row]), row)
            if first != row:
                raise EnvError(
                    f"the factories of rows {first} and {row} returned the same object; a factory "
                    "must make a new environment at each call"
                )
        undo.pop_all()
    return envs


def row_spec_of(env: GymEnv) -> RowSpec:
    """Read an environment's spaces; it is reset once where only `info` can tell about masks."""
    obs_spec = obs_spec_of(env.observation_space)
    check_action_space(env.action_space)
    layout = mask_layout_of(env.action_space)
    announced, probed = obs_spec.mask_path is not None, False
    if layout is not None and not announced:
        announced, probed = MASK_KEY in probe_reset(env), True
    if announced and layout is None:
        raise EnvError(
            f"the environment gives an action mask, but its action space {env.action_space} cannot be "
            f"masked; drop the observation entry {MASK_KEY!r} or use a discrete action space"
        )
    return RowSpec(
        env.observation_space, env.action_space, obs_spec, layout if announced else None, probed
    )


def probe_reset(env: GymEnv) -> dict[str, Any]:
    """The info of one reset of row 0, which every backend makes: they agree on reset counts too."""
    return _reset(env, 0, _PROBE_SEED)[1]


def as_number(value: Any) -> float | None:
    """A python or numpy number (bool too, zero-dimensional arrays too) as a float; else None."""
    if isinstance(value, (int, float)):
        return float(value)
    if (
        isinstance(value, (np.generic, np.ndarray))
        and value.ndim == 0
        and value.dtype.kind in "biuf"
    ):
        return float(value)
    return None


def as_reward(value: Any) -> float:
    """A reward in any usual disguise (numpy scalar, bool, array with one element) as a float."""
    number = as_number(value)
    if number is None and isinstance(value, np.ndarray) and value.size == 1:
        number = as_number(value.reshape(()))
    if number is None:
        raise EnvError(
            f"the reward is {value!r} ({type(value).__name__}); step() must return one real number"
        )
    return number


def _numbers(info: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in info.items():
        number = as_number(value)
        if number is not None:
            numbers[str(name)] = number
    return numbers


def _reset(env: GymEnv, row: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
    try:
        observation, info = env.reset(seed=seed)
    except Exception as error:
        raise EnvError(
            f"row {row} failed in reset(seed={seed}): {type(error).__name__}: {error}"
        ) from error
    return observation, info


def _close(env: GymEnv, row: int) -> None:
    try:
        env.close()
    except Exception as error:
        raise EnvError(
            f"row {row} failed in close(): {type(error).__name__}: {error}"
        ) from error


class GymRows:
    """Environments of some neighbouring rows, stepped one after another in this process.

    `arrays` and the observations given to `reset` and `step` have one entry per row here. The rows own
    their environments: `close` closes them.
    """

    def __init__(
        self, envs: Sequence[GymEnv], spec: RowSpec, arrays: RowArrays, first_row: int
    ) -> None:
        for row, env in enumerate(envs, first_row):
            spec.check(env, row)
        self._envs = list(envs)
        self._env_steps = [env.step for env in envs]
        self._spec = spec
        self._arrays = arrays
        self._first_row = first_row
        self._finite = FiniteCheck(spec.obs_spec)
        self._step = 0
        self._any_ended = True
        self._leaf = spec.obs_spec.leaves[0]
        """The only one where observations are plain arrays."""
        self.any_cut = False
        """Whether the last step cut an episode short (truncated and not terminated)."""
        self.infos: list[tuple[int, dict[str, float]]] = []
        """Numbers reported by the episodes that ended in the last step: (row here, name -> value)."""

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> None:
        """Begin an episode in every row."""
        self._step = 0
        self._any_ended, self.any_cut, self.infos = True, False, []
        for row, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            observation, info = _reset(env, self._first_row + row, int(seed))
            try:
                self._spec.obs_spec.write(observation, obs_out, row)
                self._write_mask(row, observation, info)
            except Exception as error:
                raise self._failed(row, error) from error
        self._arrays.begin_episodes()
        self._finite.observations(obs_out, first_row=self._first_row, step=0)

    def step(self, actions: np.ndarray, obs_out: ObsArrays) -> None:
        """Take one action per row; `actions` must be memory that environments may keep."""
        self._begin_step()
        rewards, env_steps = self._arrays.rewards, self._env_steps
        masked = self._arrays.action_mask is not None
        key, shape, dtype = self._leaf.key, self._leaf.shape, self._leaf.dtype
        plain_out = obs_out[key] if self._spec.obs_spec.is_plain else None
        ndarray, row = np.ndarray, 0
        try:
            for row, action in enumerate(actions):
                obs, reward, terminated, truncated, info = env_steps[row](action)
                rewards[row] = reward if type(reward) is float else as_reward(reward)
                if terminated or truncated:
                    obs, info = self._end_episode(row, obs, (terminated, truncated), info)
                if (
                    plain_out is not None
                    and type(obs) is ndarray
                    and obs.dtype is dtype
                    and obs.shape == shape
                ):
                    plain_out[row] = obs
                else:
                    self._spec.obs_spec.write(obs, obs_out, row)
                if masked:
                    self._write_mask(row, obs, info)
        except Exception as error:
            raise self._failed(row, error) from error
        self._finite.rewards(rewards, first_row=self._first_row, step=self._step)
        self._finite.observations(obs_out, first_row=self._first_row, step=self._step)

    def close(self) -> None:
        """Close every environment, in order, even where one of them fails to."""
        with ExitStack() as closing:
            for row in reversed(range(len(self._envs))):
                closing.callback(_close, self._envs[row], self._first_row + row)

    def _begin_step(self) -> None:
        self._step += 1
        if self._any_ended:
            self._any_ended, self.any_cut, self.infos = False, False, []
            self._arrays.clear_ends()

    def _end_episode(
        self, row: int, observation: Any, end: tuple[Any, Any], info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        arrays, (terminated, truncated) = self._arrays, end
        self._any_ended = True
        arrays.terminated[row], arrays.truncated[row] = bool(terminated), bool(truncated)
        arrays.starts[row] = True
        if not terminated:
            # before the reset: an environment may reuse one buffer for all its observations
            self._spec.obs_spec.write(observation, arrays.final_obs, row)
            self._finite.final_observation(
                arrays.final_obs, row, first_row=self._first_row, step=self._step
            )
            self.any_cut = True
        numbers = _numbers(info)
        if numbers:
            self.infos.append((row, numbers))
        return _reset(self._envs[row], self._first_row + row, None)

    def _write_mask(self, row: int, observation: Any, info: dict[str, Any]) -> None:
        layout, masks = self._spec.mask_layout, self._arrays.action_mask
        if layout is None or masks is None:
            return
        if self._spec.obs_spec.mask_path is not None:
            mask = self._spec.obs_spec.mask_of(observation)
        elif MASK_KEY in info:
            mask = info[MASK_KEY]
        else:
            raise EnvError(
                f"info has no {MASK_KEY!r}, though the first reset had one; give it in the info of "
                "every step() and reset()"
            )
        layout.write(mask, masks[row])

    def _failed(self, row: int, error: Exception) -> EnvError:
        kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        return EnvError(
            f"row {self._first_row + row} ({self._envs[row]}) failed at step {self._step}: "
            f"{kind}{error}"
        )
