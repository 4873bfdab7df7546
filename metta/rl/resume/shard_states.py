"""States of shards that other ranks hold, for the rank that writes checkpoints."""

from metta.rl.ranks import Ranks
from metta.state_tree import bytes_of_state, state_of_bytes
from metta.stateful import StateRegistry

__all__ = ["SHARDED", "bring_shards", "shard_names"]

SHARDED = ("collector", "environments")
"""Components of which every shard has its own."""


def shard_names(shards: range) -> list[str]:
    """Names of the components of these shards."""
    return [f"{name}/{shard}" for shard in shards for name in SHARDED]


def bring_shards(registry: StateRegistry, ranks: Ranks) -> None:
    """Bring the states of all shards to every rank; all ranks must call it at once."""
    if ranks.size == 1:
        return
    own = {name: part for name, part in registry.snapshot().items() if name in _names_of(ranks)}
    for rank, other in enumerate(ranks.share(bytes_of_state(own))):
        if rank != ranks.rank:
            registry.elsewhere.update(state_of_bytes(other))


def _names_of(ranks: Ranks) -> list[str]:
    return shard_names(ranks.shards)
