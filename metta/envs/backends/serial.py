"""Environments stepped one after another in the process of the trainer."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.restore.deferred_log import DeferredLog
from metta.envs.restore.episode_log import EpisodeLog
from metta.envs.restore.restore_check import check_restore
from metta.envs.restore.row_states import load_row_states, row_states
from metta.envs.restore.saved_envs import (
    boundary_state,
    class_of_state,
    load_tasks,
    repeat_state,
    snapshot_rows,
    snapshot_state,
    with_tasks,
)
from metta.envs.rows.gym_adapter import GymRows
from metta.envs.rows.row_arrays import RowArrays
from metta.envs.rows.row_spec import EnvFactory, build_envs, row_spec_of
from metta.envs.rows.tasked_env import RowTasks, TaskedEnv
from metta.envs.vec_env import (
    ObsArrays,
    RestoreClass,
    RestoreSupport,
    StepResult,
    group_slices,
)
from metta.errors import ConfigError, EnvError, StateError

__all__ = ["SerialVecEnv"]


class SerialVecEnv:
    """The simplest `RestorableVecEnv`, and the reference for the others.

        envs = SerialVecEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
        obs = envs.obs_spec.zeros(8)
        envs.reset(range(8), obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    An environment that fails closes all of them and raises `EnvError`.
    """

    gives_finite = True

    def __init__(self, factories: Sequence[EnvFactory], num_groups: int = 1) -> None:
        if not factories:
            raise ConfigError("no environments to step: got an empty list of factories")
        self._slices = group_slices(len(factories), num_groups)
        envs = list(build_envs(dict(enumerate(factories))).values())
        try:
            spec = row_spec_of(envs[0])
            self._arrays = RowArrays.allocate(spec.obs_spec, len(envs), spec.mask_size)
            self._group_arrays = [self._arrays.part(rows) for rows in self._slices]
            first = envs[0]
            self.num_tasks = first.num_tasks if isinstance(first, TaskedEnv) else 1
            self._tasks = RowTasks.allocate(len(envs))
            self._groups = [
                GymRows(envs[rows], spec, arrays, rows.start, self._tasks_of(rows))
                for rows, arrays in zip(self._slices, self._group_arrays, strict=True)
            ]
        except BaseException:
            for env in envs:
                env.close()
            raise
        self._factories, self._envs, self._spec = list(factories), envs, spec
        self.observation_space = spec.observation_space
        self.action_space = spec.action_space
        self.obs_spec = spec.obs_spec
        self.num_rows = len(envs)
        self.num_groups = num_groups
        self.mask_size = spec.mask_size
        self._group_size = self.num_rows // num_groups
        self._order = CallOrder(num_groups)
        self._actions: list[np.ndarray] = [np.empty(0)] * num_groups
        self._restore_class: RestoreClass = "boundary"
        self._log: DeferredLog | None = DeferredLog(self.num_rows, num_groups, self.action_space)
        """From the first reset on, until the class turns out to be another one than `repeat`."""
        self._logged = np.empty(
            (num_groups, self._group_size, *(spec.action_space.shape or ())),
            spec.action_space.dtype,
        )

    def _tasks_of(self, rows: slice) -> RowTasks | None:
        return self._tasks.part(rows) if self.num_tasks > 1 else None

    @property
    def tasks(self) -> np.ndarray:
        """``[num_rows]`` what each environment plays."""
        return self._tasks.now

    @property
    def next_tasks(self) -> np.ndarray:
        """``[num_rows]`` what each environment's next episode will be of; write to it between steps."""
        return self._tasks.next

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row; a step under way is dropped."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._order.reset()
        try:
            for group, rows in zip(self._groups, self._slices, strict=True):
                group.reset(seeds[rows], {key: out[rows] for key, out in obs_out.items()})
        except EnvError as error:
            self._close_after(error)
            raise
        if self._log is not None:
            self._log.begin(seeds)
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[n, ...]`` for `recv`, which steps."""
        checked = check_actions(actions, self._group_size, self.action_space)
        self._order.send(group)
        # memory of its own for each step: an environment may keep the action it was given
        self._actions[group] = np.array(checked, self.action_space.dtype)
        if self._log is not None:
            # and another one: it may change it too
            self._logged[group] = checked

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Step the rows of the group; observations are written straight into `obs_out`."""
        self._order.recv(group)
        rows = self._groups[group]
        try:
            rows.step(self._actions[group], obs_out)
        except EnvError as error:
            self._close_after(error)
            raise
        self._order.received(group)
        if self._log is not None:
            self._log.record(group, self._logged[group], self._group_arrays[group].starts)
        return self._group_arrays[group].result(any_cut=rows.any_cut, infos=rows.infos)

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """Try the classes on throwaway environments; actions are logged from the first reset on."""
        support = check_restore(self._factories, self._spec, wanted, in_use=self._envs)
        self._restore_class = support.restore_class
        if support.restore_class != "repeat":
            self._log = None
        return support

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands; `boundary` before the first reset."""
        has_begun = self._order.stands_still("state_dict()")
        if has_begun and self._restore_class == "snapshot":
            state = snapshot_state(
                lambda: {"rows": [row for group in self._groups for row in row_states(group)]}
            )
        elif has_begun and self._restore_class == "repeat" and self._log is not None:
            state = repeat_state(self._log.log)
        else:
            state = boundary_state()
        return with_tasks(state, self._tasks, self.num_tasks)

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Bring every environment to where it stood; after a `boundary`, `reset` comes next."""
        self._order.forget()
        obs: ObsArrays | None = None
        load_tasks(state, self._tasks, self.num_tasks)
        match class_of_state(state):
            case "boundary":
                return None
            case "snapshot":
                rows = snapshot_rows(state, self.num_rows)
                for group, part in zip(self._groups, self._slices, strict=True):
                    load_row_states(group, rows[part])
                if self._log is not None:
                    self._join(self._log.log)
            case "repeat":
                obs = self._repeat(state)
        self._order.stand()
        return obs

    def close(self) -> None:
        """Close every environment."""
        if self._order.is_closed:
            return
        self._order.close()
        with ExitStack() as closing:
            for group in reversed(self._groups):
                closing.callback(group.close)

    def _join(self, log: EpisodeLog) -> None:
        log.join(
            np.concatenate([group.row_seeds for group in self._groups]),
            np.concatenate([group.episodes for group in self._groups]),
        )

    def _repeat(self, state: Mapping[str, Any]) -> ObsArrays:
        log = EpisodeLog(self.num_rows, self.action_space)
        log.load(state)
        if log.unknown_rows():
            raise StateError(f"the actions of rows {log.unknown_rows()} were not saved")
        seeds, episodes = log.seeds, log.episodes
        obs = self.obs_spec.zeros(self.num_rows)
        for group, rows in zip(self._groups, self._slices, strict=True):
            actions = [log.actions_of(row) for row in range(rows.start, rows.stop)]
            out = {key: array[rows] for key, array in obs.items()}
            group.repeat(seeds[rows], episodes[rows], actions, out)
        if self._log is not None:
            self._log.log.load(state)
        return obs

    def _close_after(self, error: EnvError) -> None:
        try:
            self.close()
        except EnvError as second:
            error.add_note(f"closing the environments failed too: {second}")
