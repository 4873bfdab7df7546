"""`ShardedCollector`: the shards of a rollout that one rank collects."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metta.curriculum import Curriculum
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import CollectedPart, RolloutCollector, report_scores
from metta.rl.ranks import Ranks

__all__ = [
    "Collector",
    "Experience",
    "ShardedCollector",
    "ShardedExperience",
    "buffers_of",
    "collectors_of",
]


SHARED_COLUMNS = ("rewards", "values", "advantages", "returns", "valid")


class ShardedExperience:
    """The rollouts of this rank's shards; `columns` ``[T, N, ...]`` holds them side by side."""

    def __init__(self, parts: Sequence[RolloutBuffer]) -> None:
        self.parts = list(parts)
        self.policy_lag: int | None = None
        """As of `RolloutBuffer`."""
        self.run_columns: dict[str, Tensor] = {}
        """Columns that are measured, of all shards of the run: see `share`."""
        self._joined: tuple[list[dict[str, Tensor]], dict[str, Tensor]] | None = None

    @property
    def horizon(self) -> int:
        """Steps of a rollout."""
        return self.parts[0].horizon

    @property
    def num_rows(self) -> int:
        """Rows of all shards of this rank."""
        return sum(part.num_rows for part in self.parts)

    def share(self, ranks: Ranks) -> None:
        """Bring what is measured of a rollout to all ranks: rewards, values, advantages, returns."""
        for name in SHARED_COLUMNS:
            own = torch.stack([part.columns[name] for part in self.parts])
            blocks = ranks.gather_all(own)
            self.run_columns[name] = torch.cat([one for block in blocks for one in block], 1)

    @property
    def columns(self) -> dict[str, Tensor]:
        """Columns of all shards, joined when they are first asked for."""
        own = [part.columns for part in self.parts]
        if self._joined is None or any(
            a is not b for a, b in zip(own, self._joined[0], strict=True)
        ):
            joined = {name: torch.cat([c[name] for c in own], 1) for name in own[0]}
            self._joined = own, joined
        return self._joined[1]


Experience = RolloutBuffer | ShardedExperience
"""What a run collects into."""


def buffers_of(experience: Experience) -> list[RolloutBuffer]:
    """The buffers of this rank's shards."""
    return experience.parts if isinstance(experience, ShardedExperience) else [experience]


class ShardedCollector:
    """Collects the shards of this rank one after the other, and shares what ended with all ranks.

    Statistics, steps and scores of tasks are those of all shards, in their order: the same on all ranks.
    """

    def __init__(
        self,
        vec_env: Any,
        shards: Sequence[Any],
        ranks: Ranks,
        experience: Experience | None = None,
    ) -> None:
        self.vec_env, self.shards, self.ranks = vec_env, list(shards), ranks
        self._experience: Experience = experience or ShardedExperience(
            [shard.experience for shard in self.shards]
        )
        if ranks.num_shards > 1:
            for number, shard in zip(ranks.shards, self.shards, strict=True):
                shard.state_name = f"collector/{number}"

    @property
    def experience(self) -> Experience:
        """The buffers that the next rollout goes into."""
        return self._experience

    @experience.setter
    def experience(self, experience: Experience) -> None:
        for shard, part in zip(self.shards, buffers_of(experience), strict=True):
            shard.experience = part
        self._experience = experience

    @property
    def actor_kind(self) -> str:
        """As of `RolloutCollector`, the same in all shards."""
        found: str = self.shards[0].actor_kind
        return found

    @property
    def curriculum(self) -> Curriculum | None:
        """That of the first shard; all have the same."""
        found: Curriculum | None = self.shards[0].curriculum
        return found

    @property
    def num_rollouts(self) -> int:
        """Rollouts so far."""
        found: int = self.shards[0].num_rollouts
        return found

    @property
    def num_episodes(self) -> int:
        """Episodes that ended on this rank."""
        return sum(shard.num_episodes for shard in self.shards)

    @property
    def is_under_way(self) -> bool:
        """Whether episodes continue in the next rollout."""
        found: bool = self.shards[0].is_under_way
        return found

    def resume_with_fresh_episodes(self) -> None:
        """Begin new episodes in the next rollout; unfinished ones are dropped and not counted."""
        for shard in self.shards:
            shard.resume_with_fresh_episodes()

    def collect(self) -> tuple[dict[str, list[float]], int]:
        """One rollout of every shard; statistics and valid steps of all shards of the run."""
        own = self._collect_parts()
        parts = [_part_of(text) for text in self.ranks.collect_texts([_text_of(p) for p in own])]
        stats: dict[str, list[float]] = {}
        for part in parts:
            for name, numbers in part.stats.items():
                stats.setdefault(name, []).extend(numbers)
        scores = [score for part in parts for score in part.scores]
        stats |= report_scores(self.curriculum, scores)
        return stats, sum(part.num_steps for part in parts)

    def _collect_parts(self) -> list[CollectedPart]:
        """One rollout of every shard of this rank, in their buffers."""
        return [shard.collect_part() for shard in self.shards]


Collector = RolloutCollector | ShardedCollector
"""What a run collects with."""


def collectors_of(collector: Collector) -> Sequence[Any]:
    """What has each of this rank's shards: `RolloutCollector`s, or what stands for them elsewhere."""
    return collector.shards if isinstance(collector, ShardedCollector) else [collector]


def _text_of(part: CollectedPart) -> bytes:
    """As JSON, which keeps every bit of a float."""
    return json.dumps(part).encode()


def _part_of(text: bytes) -> CollectedPart:
    stats, scores, num_steps = json.loads(text)
    return CollectedPart(stats, [(int(task), score) for task, score in scores], int(num_steps))
