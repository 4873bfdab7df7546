"""Gymnasium environments as rows: one environment, one row, reset in the step that ends its episode.

Rows write what a step gave straight into the arrays of its `StepResult`.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metta.envs.rows.env_api import old_step
from metta.envs.rows.row_spec import GymEnv, RowSpec, episode_seed, reset_env
from metta.envs.rows.tasked_env import RowTasks
from metta.envs.vec_env import LIFE_LOST, FinalRows, ObsArrays, StepResult
from metta.errors import EnvError
from metta.spaces import MASK_KEY, ObsSpec

__all__ = ["FiniteCheck", "GymRows", "RowArrays", "as_number", "as_reward"]

_QUICK_LOOK_SIZE = 8192
"""Elements; beyond it a dot product would start the threads of BLAS."""


@dataclass(slots=True)
class RowArrays:
    """Per-row outputs ``[n, ...]`` of a step; parts of it are views, so groups share one allocation."""

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    starts: np.ndarray
    action_mask: np.ndarray | None
    final_obs: ObsArrays
    """Filled only where a row was cut short."""

    @classmethod
    def allocate(cls, obs_spec: ObsSpec, num_rows: int, mask_size: int) -> "RowArrays":
        """Arrays in this process's own memory."""
        flags = np.zeros((3, num_rows), np.bool_)
        return cls(
            rewards=np.zeros(num_rows, np.float32),
            terminated=flags[0],
            truncated=flags[1],
            valid=np.ones(num_rows, np.bool_),
            starts=flags[2],
            action_mask=np.zeros((num_rows, mask_size), np.bool_) if mask_size else None,
            final_obs=obs_spec.zeros(num_rows),
        )

    def part(self, rows: slice) -> "RowArrays":
        """The same memory, seen by some of the rows."""
        return replace(
            self,
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            valid=self.valid[rows],
            starts=self.starts[rows],
            action_mask=None if self.action_mask is None else self.action_mask[rows],
            final_obs={key: array[rows] for key, array in self.final_obs.items()},
        )

    def begin_episodes(self) -> None:
        """What holds right after a reset of every row."""
        self.rewards.fill(0.0)
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.valid.fill(True)
        self.starts.fill(True)

    def clear_ends(self) -> None:
        """Forget which episodes ended."""
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.starts.fill(False)

    def result(self, *, any_cut: bool, infos: list[tuple[int, dict[str, float]]]) -> StepResult:
        """The step as its reader sees it; `any_cut`: some row was truncated and not terminated."""
        final = None
        if any_cut:
            rows = np.flatnonzero(self.truncated & ~self.terminated)
            final = FinalRows(rows, {key: array[rows] for key, array in self.final_obs.items()})
        return StepResult(
            self.rewards,
            self.terminated,
            self.truncated,
            self.valid,
            self.starts,
            self.action_mask,
            final,
            infos,
        )


class FiniteCheck:
    """Refuses NaN and infinity in observations and rewards before anything can learn from them."""

    def __init__(self, obs_spec: ObsSpec) -> None:
        self._keys = [leaf.key for leaf in obs_spec.leaves if leaf.dtype.kind == "f"]

    def observations(self, obs: ObsArrays, *, first_row: int, step: int) -> None:
        """Check observations ``[n, ...]``."""
        for key in self._keys:
            if not _all_finite(obs[key]):
                _refuse(f"observation {key!r}", obs[key], first_row, step)

    def final_observation(self, obs: ObsArrays, row: int, *, first_row: int, step: int) -> None:
        """Check the last observation of one episode that was cut short."""
        for key in self._keys:
            if not _all_finite(obs[key][row]):
                one = obs[key][row : row + 1]
                _refuse(f"final observation {key!r}", one, first_row + row, step)

    @staticmethod
    def rewards(rewards: np.ndarray, *, first_row: int, step: int) -> None:
        """Check rewards ``[n]``."""
        if not _all_finite(rewards):
            _refuse("reward", rewards, first_row, step)


def _all_finite(values: np.ndarray) -> bool:
    # the sum of squares is a quick first look: large but finite numbers may overflow it
    if values.size <= _QUICK_LOOK_SIZE and math.isfinite(np.vdot(values, values)):
        return True
    return bool(np.isfinite(values).all())


def _refuse(what: str, values: np.ndarray, first_row: int, step: int) -> None:
    bad = ~np.isfinite(values)
    row = int(np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))[0])
    example = np.ravel(values[row])[np.ravel(bad[row])][0]
    raise EnvError(
        f"{what} of row {first_row + row} is {example} at step {step}, which no policy can learn "
        "from; fix the environment or clip it in a wrapper"
    )


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
    """A reward of any usual type (numpy scalar, bool, array with one element) as a float."""
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


def _close(env: GymEnv, row: int) -> None:
    try:
        env.close()
    except Exception as error:
        raise EnvError(f"row {row} failed in close(): {type(error).__name__}: {error}") from error


class GymRows:
    """Environments of some neighbouring rows, stepped one after another in this process.

    `arrays` and the observations given to `reset` and `step` have one entry per row here. The rows own
    their environments: `close` closes them. Every episode is seeded: the k-th of a row (from 0) with
    `episode_seed(row seed, k)`, so that it depends on nothing played before. With `tasks`, environments
    are `TaskedEnv`s, and each episode is of the task that is next for its row when it begins.
    """

    def __init__(
        self,
        envs: Sequence[GymEnv],
        spec: RowSpec,
        arrays: RowArrays,
        first_row: int,
        tasks: RowTasks | None = None,
    ) -> None:
        for row, env in enumerate(envs, first_row):
            spec.check(env, row)
        self.envs = list(envs)
        self._env_steps = [env.step for env in envs]
        self._spec = spec
        self._arrays = arrays
        self.first_row = first_row
        self._tasks = tasks
        self._finite = FiniteCheck(spec.obs_spec)
        self._step = 0
        self._any_ended = True
        self.row_seeds = np.zeros(len(self.envs), np.int64)
        """The seeds given to the last `reset`."""
        self.episodes = np.zeros(len(self.envs), np.int64)
        """The number of each row's present episode, counted from that reset."""
        self._leaf = spec.obs_spec.leaves[0]
        """The only leaf if observations are plain arrays."""
        self.any_cut = False
        """Whether the last step cut an episode short (truncated and not terminated)."""
        self.infos: list[tuple[int, dict[str, float]]] = []
        """Numbers reported by the episodes that ended in the last step, and `LIFE_LOST` where one goes on:
        (row here, name -> value)."""

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> None:
        """Begin episode 0 in every row."""
        self.row_seeds[:] = seeds
        self.episodes.fill(0)
        self._begin_episodes(obs_out)

    def begin_fresh(self, obs_out: ObsArrays) -> None:
        """Leave every episode unfinished and begin the next one; no action is taken (`valid` is False)."""
        self.episodes += 1
        self._begin_episodes(obs_out)
        self._arrays.valid.fill(False)

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
                elif info and LIFE_LOST in info:
                    self._any_ended = True
                    self.infos = [*self.infos, (row, {LIFE_LOST: 1.0})]
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
        self._finite.rewards(rewards, first_row=self.first_row, step=self._step)
        self._finite.observations(obs_out, first_row=self.first_row, step=self._step)

    def begin_again(self, row: int, seed: int, episode: int, task: int) -> Any:
        """Reset one row to the beginning of a given episode; what it observes there."""
        self.row_seeds[row], self.episodes[row] = seed, episode
        if self._tasks is not None:
            self._tasks.now[row] = task
        return self._reset_row(row)[0]

    def repeat(self, row: int, actions: np.ndarray, sign_of_life: Callable[[], None]) -> Any:
        """Take actions ``[L, ...]`` once more in one row; what it observes then."""
        observation = None
        try:
            for self._step, action in enumerate(actions, 1):
                sign_of_life()
                observation, _, terminated, truncated, _ = self._env_steps[row](action)
                if terminated or truncated:
                    raise EnvError(
                        f"the episode ended after {self._step} of {len(actions)} repeated actions; it "
                        "had not ended the first time, so the environment is not deterministic"
                    )
        except Exception as error:
            raise self._failed(row, error) from error
        self._step = 0
        return observation

    def write_observation(self, row: int, observation: Any, obs_out: ObsArrays) -> None:
        """Write and check what one row observes."""
        try:
            self._spec.obs_spec.write(observation, obs_out, row)
        except Exception as error:
            raise self._failed(row, error) from error
        seen = {key: array[row : row + 1] for key, array in obs_out.items()}
        self._finite.observations(seen, first_row=self.first_row + row, step=0)

    def close(self) -> None:
        """Close every environment, in order, even where one of them fails to."""
        with ExitStack() as closing:
            for row in reversed(range(len(self.envs))):
                closing.callback(_close, self.envs[row], self.first_row + row)

    def _begin_step(self) -> None:
        self._step += 1
        if self._any_ended:
            self._any_ended, self.any_cut, self.infos = False, False, []
            self._arrays.clear_ends()
            self._arrays.valid.fill(True)

    def _begin_episodes(self, obs_out: ObsArrays) -> None:
        self._step = 0
        self._any_ended, self.any_cut, self.infos = True, False, []
        for row in range(len(self.envs)):
            observation, info = self._begin_row(row)
            try:
                self._spec.obs_spec.write(observation, obs_out, row)
                self._write_mask(row, observation, info)
            except Exception as error:
                raise self._failed(row, error) from error
        self._arrays.begin_episodes()
        self._finite.observations(obs_out, first_row=self.first_row, step=0)

    def _begin_row(self, row: int) -> tuple[Any, dict[str, Any]]:
        """A new episode, of the task that comes next."""
        if self._tasks is not None:
            self._tasks.now[row] = self._tasks.next[row]
        return self._reset_row(row)

    def _reset_row(self, row: int) -> tuple[Any, dict[str, Any]]:
        """Begin the present episode of a row, of its present task."""
        if self._tasks is not None:
            try:
                self.envs[row].begin_task(int(self._tasks.now[row]))  # type: ignore[attr-defined]  # a TaskedEnv
            except Exception as error:
                raise self._failed(row, error) from error
        seed = episode_seed(int(self.row_seeds[row]), int(self.episodes[row]))
        return reset_env(self.envs[row], self.first_row + row, seed)

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
                arrays.final_obs, row, first_row=self.first_row, step=self._step
            )
            self.any_cut = True
        if self._spec.probed and self._spec.mask_layout is None and MASK_KEY in info:
            raise EnvError(
                f"info has an {MASK_KEY!r}, but the info of the first reset had none; give it in the "
                "info of every step() and reset()"
            )
        numbers = _numbers(info)
        if numbers:
            # a new list: the one of the step before may have been kept
            self.infos = [*self.infos, (row, numbers)]
        self.episodes[row] += 1
        return self._begin_row(row)

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
        error = old_step(self.envs[row], error) or error
        kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        return EnvError(
            f"row {self.first_row + row} ({self.envs[row]}) failed at step {self._step}: "
            f"{kind}{error}"
        )
