"""Environments stepped one after another in the process of the trainer."""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.gym_adapter import GymRows
from metta.envs.row_arrays import RowArrays
from metta.envs.row_spec import EnvFactory, build_envs, row_spec_of
from metta.envs.vec_env import ObsArrays, StepResult, group_slices
from metta.errors import ConfigError, EnvError

__all__ = ["SerialVecEnv"]


class SerialVecEnv:
    """The simplest `VecEnv`, and the reference for the others.

        envs = SerialVecEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
        obs = envs.obs_spec.zeros(8)
        envs.reset(range(8), obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    An environment that fails closes all of them and raises `EnvError`.
    """

    def __init__(self, factories: Sequence[EnvFactory], num_groups: int = 1) -> None:
        if not factories:
            raise ConfigError("no environments to step: got an empty list of factories")
        self._slices = group_slices(len(factories), num_groups)
        envs = list(build_envs(dict(enumerate(factories))).values())
        try:
            spec = row_spec_of(envs[0])
            self._arrays = RowArrays.allocate(spec.obs_spec, len(envs), spec.mask_size)
            self._group_arrays = [self._arrays.part(rows) for rows in self._slices]
            self._groups = [
                GymRows(envs[rows], spec, arrays, rows.start)
                for rows, arrays in zip(self._slices, self._group_arrays, strict=True)
            ]
        except BaseException:
            for env in envs:
                env.close()
            raise
        self.observation_space = spec.observation_space
        self.action_space = spec.action_space
        self.obs_spec = spec.obs_spec
        self.num_rows = len(envs)
        self.num_groups = num_groups
        self.mask_size = spec.mask_size
        self._group_size = self.num_rows // num_groups
        self._order = CallOrder(num_groups)
        self._actions: list[np.ndarray] = [np.empty(0)] * num_groups

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
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[n, ...]`` for `recv`, which steps."""
        checked = check_actions(actions, self._group_size, self.action_space)
        self._order.send(group)
        # memory of its own for each step: an environment may keep the action it was given
        self._actions[group] = np.array(checked, self.action_space.dtype)

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
        return self._group_arrays[group].result(any_cut=rows.any_cut, infos=rows.infos)

    def close(self) -> None:
        """Close every environment."""
        if self._order.is_closed:
            return
        self._order.close()
        with ExitStack() as closing:
            for group in reversed(self._groups):
                closing.callback(group.close)

    def _close_after(self, error: EnvError) -> None:
        try:
            self.close()
        except EnvError as second:
            error.add_note(f"closing the environments failed too: {second}")
