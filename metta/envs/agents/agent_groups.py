"""Groups of agents that learn separately: every row's observation names the group of its agent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.vec_env import (
    FinalRows,
    ObsArrays,
    RestorableVecEnv,
    StepResult,
    VecEnv,
    agents_per_env,
    group_slices,
)
from metta.errors import ConfigError
from metta.spaces import ObsSpec, obs_spec_of
from metta.train.agent_groups import AGENT_GROUPS, GROUP_KEY, agent_group_sizes

__all__ = ["GroupedVecEnv", "split_agent_groups"]

_PLAIN = "obs"


class GroupedVecEnv(VecEnvWrapper):
    """A `VecEnv` whose observations have one more leaf, ``agent_group``: the group of the row's agent.

        env = GroupedVecEnv(make_vec_env("pettingzoo:mpe2.simple_spread_v3"), [2, 1])

    `sizes` are counted over the agents of an environment in their order, and must add up to all of them.
    An observation that is not a `Dict` becomes the entry ``obs`` of one. All else is that of `inner`,
    which is closed with this.
    """

    def __init__(self, inner: VecEnv, sizes: Sequence[int]) -> None:
        num_agents = agents_per_env(inner)
        self.sizes = agent_group_sizes(sizes)
        if sum(self.sizes) != num_agents:
            raise ConfigError(
                f"{AGENT_GROUPS}={list(self.sizes)} are {sum(self.sizes)} agents, but an environment has "
                f"{num_agents}; the sizes must add up to {num_agents}"
            )
        super().__init__(inner)
        self.agents_per_env = num_agents
        self.observation_space: spaces.Space[Any] = _with_group(
            inner.observation_space, len(self.sizes)
        )
        self.obs_spec: ObsSpec = obs_spec_of(self.observation_space)
        self.num_rows = inner.num_rows
        # the inner leaves come first, in their order; a tuple's have one more step in front
        self._keys = [
            (own.key, leaf.key)
            for own, leaf in zip(inner.obs_spec.leaves, self.obs_spec.leaves, strict=False)
        ]
        of_env = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self._group_of = np.tile(of_env, self.num_rows // num_agents)
        """``[num_rows]`` int64."""
        self._slices = group_slices(self.num_rows, self.num_groups)

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every environment."""
        result = self.inner.reset(seeds, self._inner_out(obs_out))
        obs_out[GROUP_KEY][...] = self._group_of
        return result

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step of one group of rows with actions ``[n, ...]``."""
        self.inner.send(group, actions)

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step."""
        result = self.inner.recv(group, self._inner_out(obs_out))
        own = self._group_of[self._slices[group]]
        obs_out[GROUP_KEY][...] = own
        if result.final is not None:
            rows, seen = result.final.rows, result.final.obs
            last = {outer: seen[inner] for inner, outer in self._keys}
            result.final = FinalRows(rows, {**last, GROUP_KEY: own[rows]})
        return result

    def state_dict(self) -> dict[str, Any]:
        """The state of the environments; groups are not part of it."""
        if isinstance(self.inner, RestorableVecEnv):
            return self.inner.state_dict()
        return {"class": "boundary"}

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore the environments."""
        if not isinstance(self.inner, RestorableVecEnv):
            return None
        seen = self.inner.load_state_dict(state)
        if seen is None:
            return None
        return {**{outer: seen[inner] for inner, outer in self._keys}, GROUP_KEY: self._group_of}

    def _inner_out(self, obs_out: ObsArrays) -> ObsArrays:
        """The arrays that the environments below write to, by their names."""
        return {inner: obs_out[outer] for inner, outer in self._keys}


def split_agent_groups(env_kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The arguments of an environment without ``agent_groups``, and the sizes (none: no groups)."""
    own = dict(env_kwargs)
    sizes = own.pop(AGENT_GROUPS, None)
    return own, () if sizes is None else agent_group_sizes(sizes)


def _with_group(space: spaces.Space[Any], num_groups: int) -> spaces.Dict:
    """A `Dict` of what there was, and the group as its last entry; its order is kept."""
    parts = list(space.spaces.items()) if isinstance(space, spaces.Dict) else [(_PLAIN, space)]
    if GROUP_KEY in dict(parts):
        raise ConfigError(
            f"{AGENT_GROUPS} are asked for, but observations have an entry {GROUP_KEY!r} already "
            f"({space}); rename it, or leave {AGENT_GROUPS} out"
        )
    return spaces.Dict([*parts, (GROUP_KEY, spaces.Discrete(num_groups))])
