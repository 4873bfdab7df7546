"""Gymnasium's vectorised environments as they are: the whole batch is one group.

Each of gymnasium's three ways to begin the next episode becomes the same `StepResult` here:

- SAME_STEP: the observation is already the next episode's first; the last one is in the infos.
- NEXT_STEP: the observation is the last one; the next step only resets, and is marked not `valid`.
- DISABLED: the rows that ended are reset here, in the same step.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from metta.envs.backends.gymnasium_infos import final_observations, mask_rows, numbers_of_rows
from metta.envs.call_order import CallOrder, check_action_space, check_actions, check_reset
from metta.envs.restore.own_state import has_own_state, load_own_state, own_state
from metta.envs.restore.saved_envs import boundary_state, class_of_state, snapshot_state
from metta.envs.rows.action_masks import MaskLayout, mask_layout_of
from metta.envs.rows.gym_adapter import FiniteCheck, RowArrays
from metta.envs.vec_env import ObsArrays, RestoreClass, RestoreSupport, StepResult
from metta.errors import ConfigError, EnvError, StateError
from metta.spaces import MASK_KEY, obs_spec_of, without_texts

__all__ = ["GymnasiumVecEnv"]

_PROBE_SEED = 0


class GymnasiumVecEnv:
    """A `VecEnv` over a gymnasium `VectorEnv`, which it owns and closes.

        envs = GymnasiumVecEnv(gymnasium.make_vec("CartPole-v1", num_envs=64))
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv` and those with `takes_seed_per_row` get one seed
    per row; others take a single seed, and get the first. Later episodes begin as the vector environment
    begins them. One that has `get_state()` and `set_state(state)` (plain data) is assumed to be of class
    `snapshot`: there is no second instance to try it on.
    """

    gives_finite = True

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self._mode = _autoreset_mode(env)
        self.observation_space = without_texts(env.single_observation_space)
        self.action_space = env.single_action_space
        check_action_space(self.action_space)
        self.obs_spec = obs_spec_of(env.single_observation_space)
        self.num_rows = env.num_envs
        self.num_groups = 1
        self._order = CallOrder(1)
        self._seed_per_row = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) or getattr(
            env.unwrapped, "takes_seed_per_row", False
        )
        self._mask_layout = self._find_masks()
        self.mask_size = self._mask_layout.size if self._mask_layout is not None else 0
        self._arrays = RowArrays.allocate(self.obs_spec, self.num_rows, self.mask_size)
        self._finite = FiniteCheck(self.obs_spec)
        self._actions = np.empty(0)
        self._step = 0
        self._ended = np.zeros(self.num_rows, np.bool_)
        """Rows whose episode ended in the step before."""
        self._is_marked = False
        """Whether a row was marked as begun, or as not valid, by the last step or reset."""
        self._restore_class: RestoreClass = "boundary"

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row; a step under way is dropped."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._order.reset()
        self._step = 0
        numbers = [int(seed) for seed in seeds]
        try:
            seed: Any = numbers if self._seed_per_row else numbers[0]
            observations, infos = self._env.reset(seed=seed)
            self._write(observations, infos, obs_out)
        except Exception as error:
            raise self._failed("reset", error) from error
        self._begin_episodes(np.zeros(self.num_rows, np.bool_))
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[num_rows, ...]`` for `recv`, which steps."""
        checked = check_actions(actions, self.num_rows, self.action_space)
        self._order.send(group)
        self._actions = np.array(checked, self._env.action_space.dtype)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Step the batch; observations are written to `obs_out` ``[num_rows, ...]``."""
        self._order.recv(group)
        self._step += 1
        try:
            result = self._take_step(obs_out)
        except Exception as error:
            raise self._failed(f"step {self._step}", error) from error
        self._order.received(group)
        return result

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """`snapshot` where the vector environment gives and takes its state, else `boundary`."""
        support = RestoreSupport("boundary", "as asked for")
        if wanted == "sync_reset":
            support = RestoreSupport(
                "sync_reset", "if its resets obey their seeds; it was not tried"
            )
        elif wanted != "boundary":
            support = RestoreSupport("snapshot", "")
            if not has_own_state(self._env):
                name = type(self._env).__name__
                support = RestoreSupport(
                    "boundary", f"a {name} has no get_state() and set_state(), and resets itself"
                )
        if wanted not in ("auto", support.restore_class):
            raise ConfigError(
                f"environments of class {wanted!r} were asked for, but these are of class "
                f"{support.restore_class!r}: {support.reason or 'they give their state'}; ask for 'auto'"
            )
        self._restore_class = support.restore_class
        return support

    def state_dict(self) -> dict[str, Any]:
        """The vector environment's `get_state()`; `boundary` before the first reset."""
        if not self._order.is_between_steps("state_dict()") or self._restore_class != "snapshot":
            return boundary_state()
        return snapshot_state(lambda: {"env": own_state(self._env), "ended": self._ended.copy()})

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore the vector environment; after a `boundary`, `reset` comes next."""
        self._order.forget()
        saved_class = class_of_state(state)
        if saved_class == "boundary":
            return None
        ended = np.asarray(state.get("ended"))
        if saved_class != "snapshot" or ended.shape != (self.num_rows,) or ended.dtype != np.bool_:
            raise StateError(
                f"the saved environments (of class {saved_class!r}) are not {self.num_rows} rows of a "
                f"vector environment like {self._env}"
            )
        load_own_state(self._env, state.get("env", {}))
        self._step = 0
        self._begin_episodes(ended.copy())
        self._order.mark_placed()
        return None

    def close(self) -> None:
        """Close the vector environment."""
        if not self._order.is_closed:
            self._order.close()
            self._env.close()

    def _begin_episodes(self, ended: np.ndarray) -> None:
        """What holds before the first step; rows that have `ended` are reset by it."""
        self._arrays.begin_episodes()
        self._ended, self._is_marked = ended, True

    def _take_step(self, obs_out: ObsArrays) -> StepResult:
        arrays = self._arrays
        observations, rewards, terminated, truncated, infos = self._env.step(self._actions)
        arrays.rewards[:] = _batch(rewards, self.num_rows, "rewards")
        arrays.terminated[:] = _batch(terminated, self.num_rows, "terminations")
        arrays.truncated[:] = _batch(truncated, self.num_rows, "truncations")
        ended = arrays.terminated | arrays.truncated
        any_ended = bool(np.count_nonzero(ended))
        any_cut = any_ended and bool((arrays.truncated & ~arrays.terminated).any())
        same_step = self._mode is AutoresetMode.SAME_STEP
        self._write(observations, infos, obs_out, unmasked=None if same_step else ended)
        numbers: list[tuple[int, dict[str, float]]] = []
        if any_ended:
            numbers = self._end_episodes(ended, infos, obs_out, any_cut=any_cut)
        self._mark_starts(ended)
        self._finite.rewards(arrays.rewards, first_row=0, step=self._step)
        self._finite.observations(obs_out, first_row=0, step=self._step)
        return arrays.result(any_cut=any_cut, infos=numbers)

    def _mark_starts(self, ended: np.ndarray) -> None:
        """Mark rows that begin an episode, and as not valid those that a step only reset."""
        arrays, next_step = self._arrays, self._mode is AutoresetMode.NEXT_STEP
        starts = self._ended if next_step else ended
        any_starts = bool(np.count_nonzero(starts))
        if any_starts or self._is_marked:
            arrays.starts[:] = starts
            if next_step:
                np.logical_not(starts, out=arrays.valid)
                arrays.rewards[starts] = 0.0
        self._ended, self._is_marked = ended, any_starts

    def _end_episodes(
        self, ended: np.ndarray, infos: dict[str, Any], obs_out: ObsArrays, *, any_cut: bool
    ) -> list[tuple[int, dict[str, float]]]:
        same_step = self._mode is AutoresetMode.SAME_STEP
        if any_cut:
            cut_rows = np.flatnonzero(self._arrays.truncated & ~self._arrays.terminated)
            if same_step:
                final_observations(infos, cut_rows, self.obs_spec, self._arrays.final_obs)
            else:
                for key, final in self._arrays.final_obs.items():
                    final[cut_rows] = obs_out[key][cut_rows]
            for row in cut_rows.tolist():
                self._finite.final_observation(
                    self._arrays.final_obs, row, first_row=0, step=self._step
                )
        if self._mode is AutoresetMode.DISABLED:
            observations, reset_infos = self._env.reset(options={"reset_mask": ended.copy()})
            self._write(observations, reset_infos, obs_out, masked_rows=ended)
        source = infos.get("final_info", {}) if same_step else infos
        return numbers_of_rows(source, np.flatnonzero(ended))

    def _write(
        self,
        observations: Any,
        infos: dict[str, Any],
        obs_out: ObsArrays,
        *,
        unmasked: np.ndarray | None = None,
        masked_rows: np.ndarray | None = None,
    ) -> None:
        """Copy observations and masks (of `masked_rows` only, all legal where `unmasked`)."""
        self.obs_spec.write(observations, obs_out, slice(0, self.num_rows))
        layout, masks = self._mask_layout, self._arrays.action_mask
        if layout is None or masks is None:
            return
        in_obs = self.obs_spec.mask_path is not None
        needed = np.ones(self.num_rows, np.bool_) if masked_rows is None or in_obs else masked_rows
        if unmasked is not None:
            # no action is taken in the last state, whatever its mask
            masks[unmasked] = True
            needed = needed & ~unmasked
        source = self.obs_spec.mask_of(observations) if in_obs else infos
        mask_rows(source, layout, masks, np.flatnonzero(needed), in_obs=in_obs)

    def _find_masks(self) -> MaskLayout | None:
        layout = mask_layout_of(self.action_space)
        if self.obs_spec.mask_path is not None:
            if layout is None:
                raise EnvError(
                    f"the environment gives an action mask, but its action space {self.action_space} "
                    f"cannot be masked; drop the observation entry {MASK_KEY!r}"
                )
            return layout
        if layout is None:
            return None
        try:
            _, infos = self._env.reset(seed=_PROBE_SEED)
        except Exception as error:
            raise self._failed(f"reset(seed={_PROBE_SEED})", error) from error
        return layout if MASK_KEY in infos else None

    def _failed(self, when: str, error: Exception) -> EnvError:
        try:
            self.close()
        except Exception as second:  # noqa: BLE001 (the first error is the one to raise)
            error.add_note(f"closing the environment failed too: {second}")
        kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        return EnvError(f"{self._env} failed in {when}: {kind}{error}")


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    found = env.metadata.get("autoreset_mode")
    if isinstance(found, AutoresetMode):
        return found
    names = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
    raise EnvError(
        f"{env} does not declare how it begins the next episode: metadata['autoreset_mode'] is {found!r}; "
        f"set it to the one it implements: {names} (gymnasium.vector.AutoresetMode)"
    )


def _batch(values: Any, num_rows: int, what: str) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (num_rows,) or array.dtype.kind not in "biuf":
        raise EnvError(
            f"{what} have shape {array.shape} and dtype {array.dtype}; step() must return "
            f"({num_rows},) numbers"
        )
    return array
