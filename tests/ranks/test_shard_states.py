"""States of shards come together on every rank."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from metta.rl.joint_start import shared_values
from metta.rl.process_group import join_ranks, leave_ranks, telling_others
from metta.rl.ranks import Ranks
from metta.rl.resume.shard_states import bring_shards, shard_names
from metta.stateful import NamedState, StateRegistry, digest_of
from metta.train.train_config import SystemConfig
from tests.rl.test_ranks import in_threads


class Part:
    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, Any]:
        return {
            "array": np.arange(self.number, dtype=np.int32), "tensor": torch.ones(self.number, 2),
            "words": [str(self.number), None, float("inf")],
        }  # fmt: skip

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def registry_of(ranks: Ranks, num_shards: int) -> StateRegistry:
    own = [NamedState(name, Part(int(name[-1]))) for name in shard_names(ranks.shards)]
    registry = StateRegistry([NamedState("policy", Part(9)), *own])
    names = set(shard_names(range(num_shards))) - set(registry.names())
    registry.elsewhere = dict.fromkeys(names)
    return registry


def test_every_rank_has_all_shards_after_they_were_brought() -> None:
    whole = registry_of(Ranks(4), 4)

    def brought(ranks: Ranks) -> tuple[str, str]:
        registry = registry_of(ranks, 4)
        assert set(registry.snapshot()) == {"policy", *shard_names(ranks.shards)}
        bring_shards(registry, ranks)
        return digest_of(registry.snapshot()), registry.digest()

    for size in (1, 2, 4):
        with ThreadPoolExecutor(size) as pool:
            found = set(pool.map(brought, in_threads(4, size)))
        assert found == {(digest_of(whole.snapshot()), whole.digest())}


def test_values_of_the_first_rank_count() -> None:
    def shared(ranks: Ranks) -> dict[str, Any]:
        return shared_values(ranks, {"rank": ranks.rank, "rate": 0.1})

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(shared, in_threads(2, 2))) == [{"rank": 0, "rate": 0.1}] * 2


def test_a_single_process_makes_no_group() -> None:
    ranks = join_ranks(3, torch.device("cpu"), SystemConfig())
    assert (ranks.size, ranks.gather, list(ranks.shards)) == (1, None, [0, 1, 2])
    with telling_others(ranks):
        leave_ranks()
    assert not torch.distributed.is_initialized()
