"""Which rank has which shards, and what comes together on all of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

from metta.errors import ConfigError
from metta.rl.ranks import Ranks


def in_threads(num_shards: int, size: int) -> list[Ranks]:
    """Ranks whose threads exchange tensors through a list."""
    barrier, slots = Barrier(size), [torch.empty(0)] * size

    def ranks_of(rank: int) -> Ranks:
        def gather(tensor: Tensor) -> Sequence[Tensor]:
            slots[rank] = tensor
            barrier.wait(20)
            found = list(slots)
            barrier.wait(20)
            return found

        return Ranks(num_shards, rank, size, gather if size > 1 else None)

    return [ranks_of(rank) for rank in range(size)]


def on_all(num_shards: int, size: int, parts: Sequence[Tensor]) -> list[Tensor]:
    def reduced(ranks: Ranks) -> Tensor:
        return ranks.reduce([parts[shard] for shard in ranks.shards])

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(reduced, in_threads(num_shards, size)))


@pytest.mark.parametrize("num_shards", [4, 6, 12])
def test_sums_are_the_same_to_the_bit_for_any_number_of_ranks(num_shards: int) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(500) * 10.0**shard for shard in range(num_shards)]
    expected = Ranks(num_shards).reduce(parts)
    for size in (n for n in range(1, num_shards + 1) if num_shards % n == 0):
        assert all(torch.equal(found, expected) for found in on_all(num_shards, size, parts))
    in_order = torch.stack(parts).cumsum(0)[-1]
    assert not torch.equal(in_order, expected)  # the order of a tree, not that of the numbers


def test_texts_of_all_shards_come_in_their_order_when_lengths_differ() -> None:
    texts = [b"", b"one", b"\0two\0", "drei\u00df".encode()]

    def collected(ranks: Ranks) -> list[bytes]:
        return ranks.collect_texts([texts[shard] for shard in ranks.shards])

    for size in (1, 2, 4):
        with ThreadPoolExecutor(size) as pool:
            assert list(pool.map(collected, in_threads(4, size))) == [texts] * size


def test_empty_texts_stay_empty() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda ranks: ranks.collect_texts([b""]), in_threads(2, 2)))
    assert found == [[b"", b""]] * 2


def test_every_shard_has_one_rank() -> None:
    assert [list(ranks.shards) for ranks in in_threads(6, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_shards_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_shards=4 cannot be divided among 3 processes"):
        Ranks(4, 0, 3)
