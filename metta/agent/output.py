"""The types that policies, actors and learners share."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Obs", "PolicyOutput", "State"]

Obs = dict[str, Tensor]
"""One tensor per observation leaf."""

State = dict[str, Tensor]
"""Recurrent state ``[N, ...]``; empty for feed-forward policies."""


class PolicyOutput(NamedTuple):
    """What a policy returns for a batch of observations."""

    dist_params: Tensor
    """``[..., P]`` float32 (float64 for float64 policies); meaning fixed by the `ActionSpec`."""
    value: Tensor
    """``[...]`` in raw reward units."""
    state: State
    """State after the last step."""
    extras: dict[str, Tensor]
    """Whatever else a user's module returned."""
