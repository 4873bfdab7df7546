"""Names and sizes of groups of agents that have their own parameters."""

from collections.abc import Sequence
from typing import Any

from metta.errors import ConfigError
from metta.train.parsing.problems import BrokenRule, shown

__all__ = [
    "AGENT_GROUPS",
    "GROUP_KEY",
    "MAX_AGENT_GROUPS",
    "agent_group_rules",
    "agent_group_sizes",
]

AGENT_GROUPS = "agent_groups"
"""Among an environment's arguments: sizes of groups of its agents, in the order of the agents."""
GROUP_KEY = "agent_group"
"""The entry of an observation with the index of the agent's group, counted from 0."""
MAX_AGENT_GROUPS = 256


def agent_group_sizes(sizes: Any) -> tuple[int, ...]:
    """Sizes of groups as whole numbers above 0; anything else is a `ConfigError`."""
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if not is_list or not 1 <= len(sizes) <= MAX_AGENT_GROUPS:
        raise ConfigError(
            f"{AGENT_GROUPS}={shown(sizes)}; it must be a list of 1 to {MAX_AGENT_GROUPS} numbers of "
            "agents, e.g. [2, 1]"
        )
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(
            f"{AGENT_GROUPS}={shown(sizes)}; every group needs a whole number of agents, at least 1"
        )
    return tuple(sizes)


def agent_group_rules(env_kwargs: dict[str, Any]) -> list[BrokenRule]:
    """What is wrong with the groups among an environment's arguments; the agents are counted later."""
    try:
        agent_group_sizes(env_kwargs.get(AGENT_GROUPS, [1]))
    except ConfigError as error:
        return [BrokenRule(("env_kwargs",), str(error))]
    return []
