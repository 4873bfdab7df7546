"""`Ranks`: who computes which shards of a run, and sums over all of them in one fixed order."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from metta.errors import ConfigError
from metta.ops.trees import tree_reduce
from metta.timing import Stopwatch

__all__ = ["RESTART_REASON", "Gather", "Ranks", "launched_ranks"]

RESTART_REASON = "METTA_RANKS_RESTARTED_BECAUSE"
"""Environment variable: why ranks that were started again were."""

Gather = Callable[[Tensor], Sequence[Tensor]]
"""A tensor of each rank, of the same shape and type everywhere -> all of them, in the order of ranks."""


def launched_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torchrun named them; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, and the shards of this one.

        ranks = Ranks(num_shards=4)                       # one process computes all four
        total = ranks.reduce([gradient_of_shard(shard) for shard in ranks.shards])

    Shards are numbered through the whole run; each rank has equally many neighbouring ones. What a shard
    computes does not depend on the rank that computes it, and neither do sums over shards.
    """

    num_shards: int = 1
    rank: int = 0
    size: int = 1
    gather: Gather | None = None
    """How tensors of all ranks come together; None: there is only one rank."""
    timer: Stopwatch = field(default_factory=Stopwatch, compare=False, repr=False)
    """``reduce``: seconds of bringing together and adding, with the wait for ranks that come later."""

    def __post_init__(self) -> None:
        if self.num_shards % self.size:
            raise ConfigError(
                f"num_shards={self.num_shards} cannot be divided among {self.size} processes; use a "
                f"multiple of {self.size}, or a number of processes that divides {self.num_shards}"
            )

    @property
    def is_master(self) -> bool:
        """Whether this rank writes files and calls hooks."""
        return self.rank == 0

    @property
    def shards(self) -> range:
        """Numbers of the shards that this rank computes."""
        own = self.num_shards // self.size
        return range(self.rank * own, (self.rank + 1) * own)

    def reduce(
        self, parts: Sequence[Tensor], combine: Callable[[Tensor, Tensor], Tensor] = torch.add
    ) -> Tensor:
        """One tensor for each shard of this rank -> all shards combined, on every rank alike."""
        own = list(parts)
        if self.gather is None:
            return tree_reduce(own, combine)
        if len(own) & (len(own) - 1) == 0:  # a subtree: one tensor to send instead of several
            own = [tree_reduce(own, combine)]
        with self.timer("reduce"):
            blocks = self.gather(torch.stack(own))
            return tree_reduce([part for block in blocks for part in block.unbind()], combine)

    def gather_all(self, tensor: Tensor) -> Sequence[Tensor]:
        """This tensor of every rank, in the order of ranks."""
        if self.gather is None:
            return [tensor]
        with self.timer("reduce"):
            return self.gather(tensor)

    def collect_texts(self, texts: Sequence[bytes]) -> list[bytes]:
        """Equally many texts of each rank -> all of them in the order of ranks, on every rank alike."""
        if self.gather is None:
            return list(texts)
        with self.timer("reduce"):
            return self._gather_texts(self.gather, texts)

    @staticmethod
    def _gather_texts(gather: Gather, texts: Sequence[bytes]) -> list[bytes]:
        own = torch.tensor([len(text) for text in texts])
        lengths = torch.stack(list(gather(own)))
        table = torch.zeros(len(texts), int(lengths.max()), dtype=torch.uint8)
        for row, text in zip(table, texts, strict=True):
            row[: len(text)] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        rows = [row for block in gather(table) for row in block]
        pairs = zip(rows, lengths.flatten().tolist(), strict=True)
        return [row[:length].numpy().tobytes() for row, length in pairs]

    def share(self, text: bytes) -> list[bytes]:
        """A text of each rank -> those of all ranks, on every rank alike."""
        return self.collect_texts([text])
