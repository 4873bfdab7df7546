"""Environments stepped one after another in the process of the trainer."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from metta.envs.backends.logged_rows import LoggedRows
from metta.envs.call_order import check_actions, check_reset
from metta.envs.restore.row_places import bring_row, row_states
from metta.envs.rows.gym_adapter import GymRows, RowArrays
from metta.envs.rows.row_spec import EnvFactory, GymEnv, build_envs, row_spec_of
from metta.envs.rows.tasked_env import RowTasks, TaskedEnv
from metta.envs.vec_env import ObsArrays, StepResult, group_slices
from metta.errors import ConfigError, EnvError

__all__ = ["SerialVecEnv"]


class SerialVecEnv(LoggedRows):
    """The simplest `RestorableVecEnv`, and the reference for the others.

        envs = SerialVecEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
        obs = envs.obs_spec.zeros(8)
        envs.reset(range(8), obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    An environment that fails closes all of them and raises `EnvError`.
    """

    def __init__(self, factories: Sequence[EnvFactory], num_groups: int = 1) -> None:
        if not factories:
            raise ConfigError("no environments to step: got an empty list of factories")
        slices = group_slices(len(factories), num_groups)
        self._envs = list(build_envs(dict(enumerate(factories))).values())
        try:
            first, tasks = self._envs[0], RowTasks.allocate(len(self._envs))
            spec = row_spec_of(first)
            num_tasks = first.num_tasks if isinstance(first, TaskedEnv) else 1
            self._arrays = RowArrays.allocate(spec.obs_spec, len(self._envs), spec.mask_size)
            self._group_arrays = [self._arrays.part(rows) for rows in slices]
            self._groups = [
                GymRows(
                    self._envs[rows],
                    spec,
                    arrays,
                    rows.start,
                    tasks.part(rows) if num_tasks > 1 else None,
                )
                for rows, arrays in zip(slices, self._group_arrays, strict=True)
            ]
        except BaseException:
            for env in self._envs:
                env.close()
            raise
        super().__init__(factories, spec, num_groups, tasks, num_tasks)
        self._actions: list[np.ndarray] = [np.empty(0)] * num_groups
        shape = (num_groups, self._group_size, *(spec.action_space.shape or ()))
        self._logged = np.empty(shape, spec.action_space.dtype)

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
        self._log.begin(seeds)
        self._begin_to_log()
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[n, ...]`` for `recv`, which steps."""
        checked = check_actions(actions, self._group_size, self.action_space)
        self._order.send(group)
        # a copy for each step: an environment may keep the action it was given
        self._actions[group] = np.array(checked, self.action_space.dtype)
        if self._keeps_log:
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
        if self._keeps_log:
            self._log.record(group, self._logged[group], self._group_arrays[group].starts)
        return self._group_arrays[group].result(any_cut=rows.any_cut, infos=rows.infos)

    def close(self) -> None:
        """Close every environment."""
        if self._order.is_closed:
            return
        self._order.close()
        with ExitStack() as closing:
            for group in reversed(self._groups):
                closing.callback(group.close)

    def _envs_here(self) -> Collection[GymEnv]:
        return self._envs

    def _row_states(self) -> list[dict[str, Any]]:
        return [state for group in self._groups for state in row_states(group)]

    def _bring_all(self) -> ObsArrays:
        obs = self.obs_spec.zeros(self.num_rows)
        for group, rows in zip(self._groups, self._slices, strict=True):
            out = {key: array[rows] for key, array in obs.items()}
            for row in range(self._group_size):
                bring_row(group, row, self._place(rows.start + row), out)
        return obs

    def _close_after(self, error: EnvError) -> None:
        try:
            self.close()
        except EnvError as second:
            error.add_note(f"closing the environments failed too: {second}")
