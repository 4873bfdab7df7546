"""Grid worlds as a `VecEnv`: every agent of every world is a row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from metta.envs.call_order import CallOrder, check_actions, check_reset
from metta.envs.grid.config import GridWorldConfig
from metta.envs.grid.layout import COUNT_NAMES, NUM_ACTIONS
from metta.envs.grid.render import WorldView
from metta.envs.grid.worlds import GridWorlds
from metta.envs.restore.saved_envs import load_arrays, state_of_arrays, support_of_arrays
from metta.envs.rows.row_arrays import RowArrays
from metta.envs.vec_env import (
    ObsArrays,
    RestoreClass,
    RestoreSupport,
    RolloutArrays,
    StepResult,
    group_slices,
)
from metta.errors import EnvError
from metta.spaces import ObsSpec, obs_spec_of

__all__ = ["GridVecEnv"]

_NUM_CODES = 8


class GridVecEnv:
    """A `RestorableVecEnv`, `TaskedVecEnv` and `FusedVecEnv` of grid worlds, stepped in this process.

        envs = GridVecEnv([TASKS["gather"], TASKS["maze"]], num_envs=64)
        envs.next_tasks[32:] = 1
        envs.reset(seeds, obs)
        envs.send(0, actions); result = envs.recv(0, obs)

    Row world * agents_per_env + agent is one agent. It sees the cells around it (codes of `Cell`; outside
    of the world is wall) and then four numbers from 0 to 7: cargo, keys, the octant in which the nearest
    depot lies (0 is north, clockwise), and the clock. It may stay or go north, east, south or west. All
    agents of a world end together: terminated at the goal, truncated at the horizon; the next episode
    begins in the same step. A world's k-th episode follows from its seed (that of its first row) and k.
    """

    gives_finite = True

    def __init__(
        self,
        tasks: Sequence[GridWorldConfig],
        num_envs: int,
        num_groups: int = 1,
        *,
        native: bool | None = None,
    ) -> None:
        self._worlds = GridWorlds(tasks, num_envs, native=native)
        self._slices = group_slices(num_envs, num_groups)
        size = self._worlds.observation_size
        self.observation_space: spaces.Space[Any] = spaces.MultiDiscrete(
            [_NUM_CODES] * size, dtype=np.uint8
        )
        self.action_space: spaces.Space[Any] = spaces.Discrete(NUM_ACTIONS)
        self.obs_spec = obs_spec_of(self.observation_space)
        self.agents_per_env = self._worlds.num_agents
        self.num_tasks = len(tasks)
        self.num_rows = num_envs * self.agents_per_env
        self.num_groups = num_groups
        self.mask_size = 0
        self._group_size = self.num_rows // num_groups
        self._order = CallOrder(num_groups)
        self._dtype = self.obs_spec.leaves[0].dtype
        # worlds write bytes; they are widened where observations of this space are stored as more
        leaf = replace(self.obs_spec.leaves[0], dtype=np.dtype(np.uint8))
        self._arrays = RowArrays.allocate(ObsSpec((leaf,)), self.num_rows, 0)
        self._bytes = np.zeros((self.num_rows, size), np.uint8)
        self._group_arrays = [
            self._arrays.part(slice(group * self._group_size, (group + 1) * self._group_size))
            for group in range(num_groups)
        ]
        self._actions = np.zeros((num_groups, self._group_size), np.int64)
        self._tasks = self._worlds.arrays.tasks.view()
        self._tasks.flags.writeable = False
        self._restore_class: RestoreClass = "boundary"

    @property
    def tasks(self) -> np.ndarray:
        """``[num_envs]`` int32, what each world plays now; not writable."""
        return self._tasks

    @property
    def next_tasks(self) -> np.ndarray:
        """``[num_envs]`` int32, what each world's next episode will be of; write to it between steps."""
        return self._worlds.arrays.next_tasks

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self._order.num_resets

    @property
    def is_fusable(self) -> bool:
        """Whether the C kernels step the worlds, and observations are stored as they write them."""
        return self._worlds.is_native and self._dtype == np.uint8

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every world; a world takes the seed of its first row."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        self._worlds.check_next_tasks()
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
        """Step the worlds of the group; observations are written straight into `obs_out`."""
        self._order.recv(group)
        out, target = self._target(obs_out, self._group_size)
        arrays, first = self._group_arrays[group], self._slices[group].start
        any_cut = self._worlds.step(first, self._actions[group], target, arrays)
        if target is not out:
            out[...] = target
        self._order.received(group)
        result = arrays.result(any_cut=any_cut, infos=self._infos(arrays.starts, group))
        if result.final is not None and self._dtype != np.uint8:
            result.final.obs = {"obs": result.final.obs["obs"].astype(self._dtype)}
        return result

    def run_steps(
        self, actor: object, rollout: RolloutArrays, first_step: int
    ) -> tuple[int, StepResult | None]:
        """Steps of all worlds with an actor, until episodes end; see `FusedVecEnv`."""
        self._order.require_ready("run_steps()")
        final_obs = self._arrays.final_obs["obs"]
        following, any_end = self._worlds.run(actor, rollout, first_step, final_obs)
        if not any_end:
            return following, None
        infos = self._infos(rollout.starts[following], 0)
        return following, self._arrays.result_at(rollout, following - 1, infos)

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """`snapshot`, unless less was asked for: the whole state is in arrays."""
        support = support_of_arrays(wanted, "grid worlds")
        self._restore_class = support.restore_class
        return support

    def state_dict(self) -> dict[str, Any]:
        """Where every world stands; `boundary` before the first reset."""
        return state_of_arrays(self._order, self._restore_class, self._worlds.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Bring every world to where it stood; after a `boundary`, `reset` comes next."""
        load_arrays(state, self._order, self._arrays, self._worlds.load, "grid worlds")
        return None

    def view(self, env_index: int) -> WorldView:
        """One world as it stands, to be drawn."""
        return self._worlds.view(env_index)

    def close(self) -> None:
        """Nothing may follow; there is nothing to release."""
        self._order.close()

    def _target(self, obs_out: ObsArrays, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The caller's array, and the one that worlds write into: the same one where it can be."""
        out, expected = obs_out["obs"], (num_rows, self._worlds.observation_size)
        if out.shape != expected or out.dtype not in (np.uint8, self._dtype):
            raise EnvError(
                f"observations are written as {expected} {self._dtype}, but obs_out has {out.shape} "
                f"{out.dtype}; allocate it with obs_spec.zeros({num_rows})"
            )
        if out.dtype == np.uint8 and out.flags.c_contiguous:
            return out, out
        return out, self._bytes[:num_rows]

    def _infos(self, starts: np.ndarray, group: int) -> list[tuple[int, dict[str, float]]]:
        rows = np.flatnonzero(starts).tolist()
        counts = self._worlds.ended_counts[group * self._group_size :]
        return [
            (row, dict(zip(COUNT_NAMES, map(float, counts[row].tolist()), strict=True)))
            for row in rows
        ]
