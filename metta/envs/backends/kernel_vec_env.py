"""Rows that C kernels, or their NumPy equivalents, step all at once; their whole state is in arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium import spaces

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.restore.saved_envs import boundary_state, class_of_state
from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.vec_env import (
    ObsArrays,
    RestoreClass,
    RestoreSupport,
    RolloutArrays,
    StepResult,
    group_slices,
)
from metta.errors import ConfigError, EnvError, StateError
from metta.spaces import obs_spec_of

__all__ = ["KernelVecEnv"]


class Worlds(Protocol):
    """Many environments in arrays, and the kernels that step them."""

    is_native: bool

    def reset(self, seeds: Sequence[int], obs: np.ndarray) -> None:
        """Begin the first episode of every environment, one seed each."""

    def step(self, first: int, actions: np.ndarray, obs: np.ndarray, rows: RowArrays) -> bool:
        """Step environments from `first` on; True if one was truncated and not terminated."""

    def run(
        self, actor: object, rollout: RolloutArrays, first: int, final_obs: np.ndarray
    ) -> tuple[int, bool]:
        """Step with an actor until something happens; the next step, and whether something did."""

    def check_actions(self, actions: np.ndarray) -> None:
        """Refuse numbers that are not actions."""

    def saved(self) -> dict[str, Any]:
        """A copy of the state of every environment."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `saved` returned; `StateError`, and nothing changes, if it does not fit."""


class KernelVecEnv:
    """A `RestorableVecEnv` and `FusedVecEnv` of `worlds`; `name` is their plural in messages."""

    gives_finite = True
    mask_size = 0

    def __init__(
        self,
        worlds: Worlds,
        name: str,
        spaces_of_row: tuple[spaces.Space[Any], spaces.Space[Any]],
        num_envs: int,
        num_groups: int,
        agents_per_env: int = 1,
    ) -> None:
        self._worlds, self._name = worlds, name
        self._firsts = [envs.start for envs in group_slices(num_envs, num_groups)]
        self.observation_space, self.action_space = spaces_of_row
        self.obs_spec = obs_spec_of(self.observation_space)
        self.agents_per_env = agents_per_env
        self.num_rows, self.num_groups = num_envs * agents_per_env, num_groups
        self._group_size = self.num_rows // num_groups
        self._order = CallOrder(num_groups)
        self._arrays = RowArrays.allocate(self.obs_spec, self.num_rows, 0)
        self._group_arrays = [
            self._arrays.part(rows) for rows in group_slices(self.num_rows, num_groups)
        ]
        self._actions = np.zeros((num_groups, self._group_size), np.int64)
        self._restore_class: RestoreClass = "boundary"

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    @property
    def is_fusable(self) -> bool:
        """Whether the C kernels step the environments."""
        return self._worlds.is_native

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every environment, which takes the seed of its first row."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._order.reset()
        out, target = self._target(obs_out, self.num_rows)
        self._worlds.reset(seeds[:: self.agents_per_env], target)
        if target is not out:
            out[...] = target
        self._arrays.begin_episodes()
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Keep the actions ``[n]`` for `recv`, which steps."""
        checked = check_actions(actions, self._group_size, self.action_space)
        taken = np.array(checked, np.int64)
        self._worlds.check_actions(taken)
        self._order.send(group)
        self._actions[group] = taken

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Step the environments of the group; observations are written straight into `obs_out`."""
        self._order.recv(group)
        out, target = self._target(obs_out, self._group_size)
        arrays = self._group_arrays[group]
        any_cut = self._worlds.step(self._firsts[group], self._actions[group], target, arrays)
        if target is not out:
            out[...] = target
        self._order.received(group)
        infos = self._infos(arrays.starts, group * self._group_size)
        return arrays.result(any_cut=any_cut, infos=infos)

    def run_steps(
        self, actor: object, rollout: RolloutArrays, first_step: int
    ) -> tuple[int, StepResult | None]:
        """Steps of all rows with an actor, until something happens; see `FusedVecEnv`."""
        self._order.require_ready("run_steps()")
        final_obs = self._arrays.final_obs["obs"]
        following, has_news = self._worlds.run(actor, rollout, first_step, final_obs)
        if not has_news:
            return following, None
        last = following - 1
        terminated, truncated = rollout.terminated[last], rollout.truncated[last]
        arrays = replace(
            self._arrays,
            rewards=rollout.rewards[last],
            terminated=terminated,
            truncated=truncated,
            starts=rollout.starts[following],
        )
        any_cut = bool((truncated & ~terminated).any())
        return following, arrays.result(any_cut=any_cut, infos=self._infos(arrays.starts, 0))

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """`snapshot`, unless less was asked for: the whole state is in arrays."""
        if wanted == "repeat":
            raise ConfigError(
                f"environments of class 'repeat' were asked for, but {self._name} give their state; ask "
                "for 'auto'"
            )
        support = RestoreSupport("snapshot", "")
        if wanted in ("boundary", "sync_reset"):
            support = RestoreSupport(wanted, "as asked for")
        self._restore_class = support.restore_class
        return support

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment; `boundary` before the first reset."""
        if not self._order.is_between_steps("state_dict()") or self._restore_class != "snapshot":
            return boundary_state()
        return {"class": "snapshot", **self._worlds.saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore every environment; after a `boundary`, `reset` comes next."""
        self._order.forget()
        saved_class = class_of_state(state)
        if saved_class == "boundary":
            return None
        if saved_class != "snapshot":
            raise StateError(
                f"the saved environments are of class {saved_class!r}; {self._name} are saved as "
                "'snapshot'"
            )
        self._worlds.load(state)
        self._arrays.begin_episodes()
        self._order.mark_placed()
        return None

    def close(self) -> None:
        """Nothing may follow; there is nothing to release."""
        self._order.close()

    def _infos(self, starts: np.ndarray, first_row: int) -> list[tuple[int, dict[str, float]]]:
        """Numbers of the episodes that ended in rows with `starts` set, counted from `first_row`."""
        del starts, first_row
        return []

    def _target(self, obs_out: ObsArrays, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The caller's array, and the one that kernels write into: the same one where it can be."""
        out, leaf = obs_out["obs"], self.obs_spec.leaves[0]
        expected = (num_rows, *leaf.shape)
        if out.shape != expected or out.dtype != leaf.dtype:
            raise EnvError(
                f"observations are written as {expected} {leaf.dtype}, but obs_out has {out.shape} "
                f"{out.dtype}; allocate it with obs_spec.zeros({num_rows})"
            )
        return out, out if out.flags.c_contiguous else np.empty(expected, leaf.dtype)
