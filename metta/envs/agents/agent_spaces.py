"""Agents with different spaces in one table: observations and actions padded to the widest of them.

Agents with equal spaces form a group, which has its own network (`GroupedVecEnv`). What is padded carries
nothing: observations end in zeros, actions that an agent does not have are masked or cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import EnvError
from metta.spaces import obs_spec_of

__all__ = ["PaddedSpaces", "padded_spaces"]

AnySpace = spaces.Space[Any]


@dataclass(frozen=True)
class PaddedSpaces:
    """What agents of different spaces have in common."""

    observation: spaces.Box
    action: spaces.Discrete | spaces.Box
    own: dict[Any, tuple[AnySpace, AnySpace]]
    """Observations and actions of each agent; agents of a group are neighbours."""
    group_sizes: tuple[int, ...]

    def observe(self, name: Any, observation: Any) -> np.ndarray:
        """What an agent sees as a vector, with zeros at its end."""
        seen = np.zeros(self.observation.shape, np.float32)
        flat: Any = spaces.flatten(self.own[name][0], observation)
        seen[: len(flat)] = flat
        return seen

    def action_of(self, name: Any, action: Any) -> Any:
        """A common action as one of the agent's own."""
        own = self.own[name][1]
        if isinstance(own, spaces.Discrete):
            return int(own.start) + int(action)
        assert isinstance(own, spaces.Box)
        count = int(np.prod(own.shape))
        return np.clip(action[:count].reshape(own.shape), own.low, own.high)

    def masks(self) -> np.ndarray | None:
        """``[A, n]`` bool: which actions each agent has; None where actions are vectors."""
        if not isinstance(self.action, spaces.Discrete):
            return None
        sizes = [int(action.n) for _, action in self.own.values()]  # type: ignore[attr-defined]  # all Discrete
        return np.arange(int(self.action.n)) < np.array(sizes)[:, None]


def padded_spaces(env: Any, names: Sequence[Any]) -> PaddedSpaces | None:
    """The common spaces of an environment's agents; None if all have the same ones.

    `EnvError` where there is nothing in common: masks of their own, or actions of different kinds.
    """
    own = {name: (env.observation_space(name), env.action_space(name)) for name in names}
    groups: list[list[Any]] = []
    for name in names:
        alike = (group for group in groups if _is_alike(own[group[0]], own[name]))
        group = next(alike, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    if len(groups) == 1:
        return None
    for name in names:
        _check(env, name, own[name][0])
    width = max(int(spaces.flatdim(observation)) for observation, _ in own.values())
    action = _common_action([action for _, action in own.values()])
    if action is None:
        kinds = {str(name): str(action) for name, (_, action) in own.items()}
        raise EnvError(
            f"the agents of {env} have actions {kinds}; agents that train together need actions of one "
            "kind: Discrete, or Box (convert them with a wrapper)"
        )
    ordered = {name: own[name] for group in groups for name in group}
    sizes = tuple(len(group) for group in groups)
    return PaddedSpaces(spaces.Box(-np.inf, np.inf, (width,), np.float32), action, ordered, sizes)


def _is_alike(one: tuple[AnySpace, AnySpace], other: tuple[AnySpace, AnySpace]) -> bool:
    """Bounds of observations may differ."""
    return obs_spec_of(one[0]) == obs_spec_of(other[0]) and one[1] == other[1]


def _check(env: Any, name: Any, observation: AnySpace) -> None:
    spec = obs_spec_of(observation)
    if spec.mask_path is None and not spec.texts:
        return
    raise EnvError(
        f"agent {name!r} of {env} has observations {observation}, and others have different ones; such "
        "observations are padded, which action masks and texts do not allow (wrap them to be numbers)"
    )


def _common_action(actions: Sequence[AnySpace]) -> spaces.Discrete | spaces.Box | None:
    discrete = [space for space in actions if isinstance(space, spaces.Discrete)]
    if len(discrete) == len(actions):
        return spaces.Discrete(max(int(space.n) for space in discrete))
    boxes = [space for space in actions if isinstance(space, spaces.Box)]
    if len(boxes) < len(actions):
        return None
    width = max(int(np.prod(box.shape)) for box in boxes)
    low, high = np.full(width, np.inf, np.float32), np.full(width, -np.inf, np.float32)
    for box in boxes:
        count = int(np.prod(box.shape))
        low[:count] = np.minimum(low[:count], box.low.ravel())
        high[:count] = np.maximum(high[:count], box.high.ravel())
    return spaces.Box(low, high, dtype=np.float32)
