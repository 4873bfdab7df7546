"""Networks of groups of agents: one for each group; every row takes the output of its group's network.

Every group's network sees all rows, and outputs of other groups are dropped. That keeps shapes fixed
and never waits for the numbers, at the price of as much work as there are groups.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from metta.errors import ConfigError
from metta.spaces import ObsSpec
from metta.train.agent_groups import GROUP_KEY, MAX_AGENT_GROUPS

__all__ = ["choose_group", "split_group_leaf"]


def split_group_leaf(spec: ObsSpec) -> tuple[ObsSpec, int]:
    """The leaves that a group's network sees, and how many groups there are; 0 without a group leaf."""
    groups = [leaf for leaf in spec.leaves if leaf.path == (GROUP_KEY,) and len(spec.leaves) > 1]
    if not groups or groups[0].kind != "discrete" or groups[0].shape != ():
        return spec, 0
    count = groups[0].categories[0]
    if count > MAX_AGENT_GROUPS:
        raise ConfigError(
            f"observations name {count} groups of agents; there may be up to {MAX_AGENT_GROUPS}"
        )
    return ObsSpec(
        tuple(leaf for leaf in spec.leaves if leaf is not groups[0]), spec.mask_path
    ), count


def choose_group(parts: Sequence[Tensor], group: Tensor, *, is_vector: bool) -> Tensor:
    """Select each row's output from one output per group; `group` is ``[*lead]`` int64.

    Outputs are ``[*lead, P]`` if `is_vector`, else ``[*lead]``. Gradients reach the chosen ones only: for
    all others they are zero.
    """
    chosen = parts[0]
    for index, part in enumerate(parts[1:], start=1):
        is_own = torch.eq(group, index)
        chosen = torch.where(is_own.unsqueeze(-1) if is_vector else is_own, part, chosen)
    return chosen
