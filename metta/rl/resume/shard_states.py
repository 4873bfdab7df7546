"""States of shards that other ranks hold, for the rank that writes checkpoints."""

import json

import safetensors.torch

from metta.rl.ranks import Ranks
from metta.state_tree import pack_state, unpack_state
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
    packed, tensors = pack_state(own)
    text, tensor_bytes = json.dumps(packed).encode(), safetensors.torch.save(tensors)
    found = ranks.collect_texts([text, tensor_bytes])
    for rank, (other, other_tensors) in enumerate(zip(found[::2], found[1::2], strict=True)):
        if rank != ranks.rank:
            state = unpack_state(json.loads(other), safetensors.torch.load(other_tensors))
            registry.elsewhere.update(state)


def _names_of(ranks: Ranks) -> list[str]:
    return shard_names(ranks.shards)
