"""A PettingZoo parallel environment as one `gymnasium.Env` whose observation holds all of its agents.

Agents may die or join. What happened to each in a step travels with the observations, so that many agents
go through the same processes, logs and checkpoints as one.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from metta.envs.agents.agent_spaces import PaddedSpaces, padded_spaces
from metta.envs.restore.env_values import UnreadableStateError, name_of_type
from metta.envs.restore.own_state import has_own_state
from metta.envs.rows.action_masks import MaskLayout, mask_layout_of
from metta.envs.rows.env_api import is_aec_env
from metta.errors import EnvError
from metta.spaces import MASK_KEY, ObsSpec, obs_spec_of, without_texts

__all__ = [
    "ACTED",
    "ENDED",
    "FLAGS",
    "MASKS",
    "OBS",
    "REWARDS",
    "STARTED",
    "STOPPED",
    "AgentsEnv",
    "AgentsSpace",
    "is_parallel_env",
]

OBS, REWARDS, FLAGS, MASKS = "agents", "rewards", "flags", "masks"
ACTED, ENDED, STOPPED, STARTED = 1, 2, 4, 8
"""Bits of an agent's flags: its action was taken; its episode terminated; was truncated; just began."""
_FLAG_BITS = 16


def is_parallel_env(env: Any) -> bool:
    """Whether an object has PettingZoo's parallel interface."""
    return (
        not isinstance(env, gymnasium.Env)
        and not is_aec_env(env)
        and hasattr(env, "possible_agents")
        and callable(getattr(env, "observation_space", None))
        and callable(getattr(env, "step", None))
    )


class AgentsSpace(spaces.Dict):
    """Leaves ``[A, ...]`` of all agents' observations, and what happened to them in the last step."""

    def __init__(
        self,
        agents: list[str],
        observation: Any,
        action: Any,
        padded: PaddedSpaces | None = None,
    ) -> None:
        self.agents = agents
        self.group_sizes = () if padded is None else padded.group_sizes
        """Of neighbouring agents with equal spaces; none where all agents have the same."""
        self.agent_observation_space: spaces.Space[Any] = without_texts(observation)
        self.agent_action_space: spaces.Space[Any] = action
        self.spec = obs_spec_of(observation)
        has_masks = self.spec.mask_path is not None or padded is not None
        self.mask_layout = mask_layout_of(action) if has_masks else None
        count = len(agents)
        parts: dict[str, spaces.Space[Any]] = {
            leaf.key: _box((count, *leaf.shape), leaf.dtype) for leaf in self.spec.leaves
        }
        members: dict[str, spaces.Space[Any]] = {
            OBS: spaces.Dict(parts),
            REWARDS: _box((count,), np.dtype(np.float32)),
            FLAGS: spaces.Box(0, _FLAG_BITS - 1, (count,), np.uint8),
        }
        if self.mask_layout is not None:
            members[MASKS] = spaces.Box(0, 1, (count, self.mask_layout.size), np.uint8)
        super().__init__(members)

    @property
    def num_agents(self) -> int:
        """Number of agents that can ever take part."""
        return len(self.agents)


def _box(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, dtype.type)


class AgentsEnv(gymnasium.Env[Any, Any]):
    """All agents of a parallel environment at once; its episode is over when no agent is left.

    Actions have one entry per possible agent, in their order (agents with equal spaces next to each
    other); those of absent agents are not taken. The observation of an absent agent is zero.
    The first observation of an episode still
    holds what happened in the last step of the one before it.
    """

    observation_space: AgentsSpace

    def __init__(self, env: Any) -> None:
        self.env = env
        self._names = list(env.possible_agents)
        first = self._names[0] if self._names else None
        if first is None:
            raise EnvError(f"{env} has no possible_agents; they are the rows of the training")
        observation, action = env.observation_space(first), env.action_space(first)
        self._padded = padded_spaces(env, self._names)
        self._padded_masks = None if self._padded is None else self._padded.masks()
        if self._padded is not None:
            self._names = list(self._padded.own)
            observation, action = self._padded.observation, self._padded.action
        self.agents = [str(agent) for agent in self._names]
        self.observation_space = AgentsSpace(self.agents, observation, action, self._padded)
        self.action_space = _batched(action, len(self._names))
        if self._padded_masks is not None:
            sizes = self._padded_masks.sum(-1)
            self.action_space = spaces.MultiDiscrete(sizes, dtype=np.int64)
        self._spec: ObsSpec = self.observation_space.spec
        self._layout: MaskLayout | None = self.observation_space.mask_layout
        self._rewards = np.zeros(len(self._names), np.float32)
        self._flags = np.zeros(len(self._names), np.uint8)
        self._numbers: dict[str, float] = {}
        self._is_over = False
        self.render_mode = getattr(env, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; flags and rewards are those of the step before."""
        observations, _ = self.env.reset(seed=seed, options=options)
        if not self._is_over:
            self._clear()
        self._numbers, self._is_over = {}, False
        over = np.zeros_like(self._flags)
        return self._observe(observations, over), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Let every present agent act."""
        alive = set(self.env.agents)
        actions = {
            name: self._action_of(action, index)
            for index, name in enumerate(self._names)
            if name in alive
        }
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._clear()
        present = set(self.env.agents)
        for index, name in enumerate(self._names):
            flags = 0
            if name in alive:
                flags = ACTED | (ENDED * bool(terminated[name])) | (STOPPED * bool(truncated[name]))
                self._rewards[index] = rewards[name]
                self._note_numbers(index, infos.get(name, {}))
            elif name in present:
                flags = STARTED
            self._flags[index] = flags
        self._is_over = not present
        cut = self._is_over and bool((self._flags & STOPPED).any())
        seen = self._observe(observations, self._flags & (ENDED | STOPPED))
        return seen, 0.0, self._is_over and not cut, cut, self._numbers if self._is_over else {}

    def get_state(self) -> dict[str, Any]:
        """The environment's `get_state()`, and what its agents reported in this episode."""
        if not has_own_state(self.env):
            raise UnreadableStateError(
                f"{name_of_type(self.env)} has no get_state() and set_state(state)"
            )
        return {"env": self.env.get_state(), "numbers": dict(self._numbers)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.env.set_state(state["env"])
        self._numbers = state["numbers"]

    def render(self) -> Any:
        """What the environment draws."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def __str__(self) -> str:
        return str(self.env)

    def _action_of(self, action: Any, index: int) -> Any:
        one = action[index]
        if self._padded is not None:
            return self._padded.action_of(self._names[index], one)
        # a python number where an agent's action is one: many environments use it as an index
        return one.item() if np.ndim(one) == 0 else one

    def _note_numbers(self, index: int, info: Mapping[str, Any]) -> None:
        for name, value in info.items():
            if isinstance(value, (int, float, np.number)) and name != MASK_KEY:
                self._numbers[f"{index}/{name}"] = float(value)

    def _clear(self) -> None:
        # new arrays: the last ones may have been kept
        self._rewards, self._flags = np.zeros_like(self._rewards), np.zeros_like(self._flags)

    def _observe(self, observations: Mapping[Any, Any], over: np.ndarray) -> dict[str, Any]:
        """What all agents see; those who are `over` ``[A]`` take no action, so their masks do not count."""
        leaves = self._spec.zeros(len(self._names))
        masks = None
        if self._layout is not None:
            masks = np.ones((len(self._names), self._layout.size), np.bool_)
        for index, name in enumerate(self._names):
            if name not in observations:
                continue
            seen = observations[name]
            seen = seen if self._padded is None else self._padded.observe(name, seen)
            self._spec.write(seen, leaves, index)
            if masks is not None and self._layout is not None and not over[index]:
                own = self._padded_masks
                mask = self._spec.mask_of(seen) if own is None else own[index]
                self._layout.write(mask, masks[index])
        all_seen = {OBS: leaves, REWARDS: self._rewards, FLAGS: self._flags}
        return all_seen if masks is None else {**all_seen, MASKS: masks.astype(np.uint8)}


def _batched(space: spaces.Space[Any], count: int) -> spaces.Space[Any]:
    """One action for each of `count` agents."""
    if isinstance(space, spaces.Discrete):
        start = np.full(count, space.start, np.int64)
        return spaces.MultiDiscrete(np.full(count, space.n), dtype=np.int64, start=start)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(
            np.stack([space.nvec] * count), dtype=np.int64, start=np.stack([space.start] * count)
        )
    if isinstance(space, spaces.Box):
        return spaces.Box(
            np.stack([space.low] * count), np.stack([space.high] * count), dtype=space.dtype.type
        )
    raise EnvError(
        f"agents with actions of {space} cannot be trained; Discrete, MultiDiscrete and Box can"
    )
