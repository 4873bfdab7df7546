"""Environments of many agents as rows: one agent, one row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.agents.agents_env import (
    ACTED,
    ENDED,
    FLAGS,
    MASKS,
    OBS,
    REWARDS,
    STARTED,
    STOPPED,
    AgentsSpace,
)
from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.call_order import check_reset
from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.vec_env import (
    FinalRows,
    ObsArrays,
    StepResult,
    group_slices,
)

__all__ = ["AgentsVecEnv"]


class AgentsVecEnv(VecEnvWrapper):
    """A `VecEnv` over another one whose environments are `AgentsEnv`s; row = environment * A + agent.

    Agents who have died, or have not joined yet, are not `valid`; all agents of an environment begin its
    next episode together, when none of them is left in this one.
    """

    inner: Any
    """Its rows are whole environments."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        space: AgentsSpace = inner.observation_space
        self.agents_per_env = space.num_agents
        self.agents = space.agents
        """Names of the agents of one environment, in the order of their rows."""
        self.group_sizes = space.group_sizes
        """Of agents with equal spaces, see `AgentsSpace`."""
        self.observation_space = space.agent_observation_space
        self.action_space = space.agent_action_space
        self.obs_spec = space.spec
        self.mask_size = 0 if space.mask_layout is None else space.mask_layout.size
        self.num_rows = inner.num_rows * self.agents_per_env
        self._slices = group_slices(self.num_rows, self.num_groups)
        self._envs_per_group = inner.num_rows // self.num_groups
        self._arrays = RowArrays.allocate(self.obs_spec, self.num_rows, self.mask_size)
        self._groups = [self._arrays.part(rows) for rows in self._slices]
        self._reported = _report_arrays(inner.num_rows, self.agents_per_env, self.mask_size)
        """What `AgentsEnv` reports besides observations, by leaf: ``[num_envs, A, ...]``."""

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every environment, with the seed of its first row."""
        check_reset(seeds, obs_out, self.num_rows, self.obs_spec)
        everything = slice(0, self.inner.num_rows)
        self.inner.reset(list(seeds)[:: self.agents_per_env], self._inner_out(everything, obs_out))
        self._arrays.begin_episodes()
        self._take_masks(self._arrays, everything)
        self._settle(everything, np.ones(self.inner.num_rows, np.bool_))
        return self._arrays.result(any_cut=False, infos=[])

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step of one group with actions ``[n, ...]``."""
        array = np.asarray(actions)
        if array.shape[:1] == (self._envs_per_group * self.agents_per_env,):
            array = array.reshape(self._envs_per_group, self.agents_per_env, *array.shape[1:])
        self.inner.send(group, array)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step; agents' observations are written straight into `obs_out`."""
        envs = slice(group * self._envs_per_group, (group + 1) * self._envs_per_group)
        result: StepResult = self.inner.recv(group, self._inner_out(envs, obs_out))
        arrays = self._groups[group]
        flags = self._reported[FLAGS][envs].reshape(-1)
        begun = np.repeat(result.starts, self.agents_per_env)
        arrays.rewards[:] = self._reported[REWARDS][envs].reshape(-1)
        np.not_equal(flags & ACTED, 0, out=arrays.valid)
        np.not_equal(flags & ENDED, 0, out=arrays.terminated)
        np.not_equal(flags & STOPPED, 0, out=arrays.truncated)
        np.logical_or(begun, flags & STARTED, out=arrays.starts)
        self._take_masks(arrays, envs)
        step = arrays.result(any_cut=False, infos=self._infos(result))
        step.final = self._final(arrays, result, obs_out)
        if result.lost is not None:
            step.lost = self._lost(arrays, result.lost)
        self._settle(envs, result.starts)
        return step

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment."""
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore every environment."""
        seen: ObsArrays | None = self.inner.load_state_dict(state)
        if seen is None:
            return None
        return {
            leaf.key: seen[f"{OBS}/{leaf.key}"].reshape(self.num_rows, *leaf.shape)
            for leaf in self.obs_spec.leaves
        }

    def _inner_out(self, envs: slice, obs_out: ObsArrays) -> dict[str, np.ndarray]:
        """Where environments write: views of the agents' rows, and what is reported besides."""
        count = envs.stop - envs.start
        out: dict[str, np.ndarray] = {
            f"{OBS}/{leaf.key}": _by_env(obs_out[leaf.key], count, self.agents_per_env)
            for leaf in self.obs_spec.leaves
        }
        return out | {name: array[envs] for name, array in self._reported.items()}

    def _take_masks(self, arrays: RowArrays, envs: slice) -> None:
        if arrays.action_mask is not None:
            arrays.action_mask[:] = self._reported[MASKS][envs].reshape(-1, self.mask_size)

    def _settle(self, envs: slice, starts: np.ndarray) -> None:
        """At the start of an episode nothing was reported yet, also when one is repeated."""
        for name in (REWARDS, FLAGS):
            self._reported[name][envs][starts] = 0

    def _infos(self, result: StepResult) -> list[tuple[int, dict[str, float]]]:
        """Numbers named ``agent/name`` belong to that agent's row."""
        infos: list[tuple[int, dict[str, float]]] = []
        for env, numbers in result.infos:
            rows: dict[int, dict[str, float]] = {}
            for name, value in numbers.items():
                agent, _, own_name = name.partition("/")
                rows.setdefault(env * self.agents_per_env + int(agent), {})[own_name] = value
            infos += rows.items()
        return infos

    def _final(self, arrays: RowArrays, result: StepResult, seen: ObsArrays) -> FinalRows | None:
        """Last observations of agents that were cut short, whether their environment continued or not."""
        rows = np.flatnonzero(arrays.truncated & ~arrays.terminated)
        if not len(rows):
            return None
        envs, agents = np.divmod(rows, self.agents_per_env)
        place = np.full(self._envs_per_group, -1)
        if result.final is not None:
            place[result.final.rows] = np.arange(len(result.final.rows))
        obs = {key: array[rows] for key, array in seen.items()}
        for key, array in obs.items():
            for index in np.flatnonzero(place[envs] >= 0):
                assert result.final is not None
                env_row = place[envs[index]]
                array[index] = result.final.obs[f"{OBS}/{key}"][env_row, agents[index]]
        return FinalRows(rows, obs)

    def _lost(self, arrays: RowArrays, envs: np.ndarray) -> np.ndarray:
        rows = (envs[:, None] * self.agents_per_env + np.arange(self.agents_per_env)).reshape(-1)
        arrays.valid[rows] = False
        return rows


def _report_arrays(num_envs: int, num_agents: int, mask_size: int) -> dict[str, np.ndarray]:
    reported: dict[str, np.ndarray] = {
        REWARDS: np.zeros((num_envs, num_agents), np.float32),
        FLAGS: np.zeros((num_envs, num_agents), np.uint8),
    }
    if mask_size:
        reported[MASKS] = np.ones((num_envs, num_agents, mask_size), np.uint8)
    return reported


def _by_env(rows: np.ndarray, num_envs: int, num_agents: int) -> np.ndarray:
    """A view ``[n, A, ...]`` of rows ``[n * A, ...]``, whatever their strides."""
    stride = rows.strides[0]
    return np.lib.stride_tricks.as_strided(
        rows, (num_envs, num_agents, *rows.shape[1:]), (stride * num_agents, *rows.strides)
    )
