"""`RemoteCollector`: rollouts whose shards are collected elsewhere, each of them counted once."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metta.envs.vec_env import VecEnv
from metta.errors import MettaError
from metta.rl.collect.collector import CollectedPart
from metta.rl.collect.opponents import OpponentPool
from metta.rl.collect.sharded_collector import Experience, ShardedCollector
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ranks import Ranks
from metta.rl.remote.ledger import ShardLedger
from metta.rl.remote.moments import moment_of, weights_of
from metta.rl.remote.pool import CollectPool
from metta.rl.remote.remote_shard import RemoteShard
from metta.rl.remote.tasks import Moment, ShardTask
from metta.timing import Stopwatch
from metta.train.run_config import CollectConfig

__all__ = ["CollectAhead", "RemoteCollector", "split_wait"]


class RemoteCollector(ShardedCollector):
    """Asks for the shards of each rollout; the ledger asks again where a place is gone.

    With `overlap` the next rollout is asked for as soon as one is complete, with the weights of that
    moment: from the second rollout on, weights are one update old.
    """

    shards: list[RemoteShard]

    def __init__(  # noqa: PLR0913  # the parts of a collector, where they are, and who learns
        self,
        vec_env: VecEnv,
        shards: Sequence[RemoteShard],
        ranks: Ranks,
        experience: Experience,
        pool: CollectPool,
        ppo: PPOOptimizer,
        config: CollectConfig,
        *,
        opponents: OpponentPool | None = None,
    ) -> None:
        super().__init__(vec_env, shards, ranks, experience)
        self.pool, self.ppo, self.config = pool, ppo, config
        self.ledger = ShardLedger(pool, self.shards, config)
        self.on_restart = self.ledger.on_restart
        self._opponents = opponents
        self._ticket = 0
        self._asked: list[ShardTask] = []
        """The rollout that was asked for last."""
        self.ahead = CollectAhead(self)
        self.timer = Stopwatch()
        """``collect``, ``wait``, ``collect_ahead`` as of `split_wait`; ``transfer``: what this process
        does to send weights and to take results."""

    @property
    def num_restarts(self) -> int:
        """Processes or actors that were replaced."""
        return self.ledger.num_restarts

    def begin(self) -> None:
        """Let all environments be made."""
        for shard in self.shards:
            self.ledger.ask(ShardTask(self._ticket, 0, shard.number, 0))
        self._finish()
        self.ledger.take(self._numbers)

    @property
    def _numbers(self) -> list[int]:
        return [shard.number for shard in self.shards]

    def _finish(self) -> None:
        """Wait for all that was asked for; after an error it is asked for anew."""
        try:
            self.ledger.finish(self._numbers)
        except MettaError:
            self.forget()
            raise

    def collect(self) -> tuple[dict[str, list[float]], int]:
        """One rollout of every shard; with `overlap`, the next one begins."""
        collected = super().collect()
        if self.config.overlap:
            self.experience.policy_lag = self.ppo.num_updates - self.ahead.version
            self._ask()
        return collected

    def _collect_parts(self) -> list[CollectedPart]:
        if not self._is_asked():
            self._ask()
        begin = time.perf_counter()
        self._finish()
        blocked = time.perf_counter() - begin
        split = split_wait(blocked, self.ledger.busiest(), is_ahead=self.config.overlap)
        for name, seconds in split.items():
            self.timer.add(name, seconds)
        with self.timer("transfer"):
            self.ledger.take(self._numbers)
        return [shard.part for shard in self.shards if shard.part is not None]

    def _tasks(self) -> list[ShardTask]:
        """The rollout that comes next."""
        return [
            ShardTask(self._ticket, s.num_rollouts, s.number, s.experience.horizon, s.is_fresh)
            for s in self.shards
        ]

    def _is_asked(self) -> bool:
        """Whether the next rollout was asked for, as it is wanted now."""
        return self._tasks() == self._asked

    def _ask(self) -> None:
        """Ask for the next rollout."""
        self.forget()
        self._ticket += 1
        self._asked = self._tasks()
        with self.timer("transfer"):
            moment = self._moment(self.num_rollouts)
            for task in self._asked:
                self.ledger.ask(task, moment)
        self.ahead.has_asked = self.config.overlap

    def _moment(self, number: int) -> Moment:
        ahead, policy = self.ahead, self.ppo.policy
        weights = ahead.restored
        if weights is None:
            if self._opponents is not None:
                self._opponents.begin_rollout(number, policy)
            weights = weights_of(policy)
            ahead.version = self.ppo.num_updates
        ahead.weights, ahead.restored = weights, None
        return moment_of(self._ticket, weights, self.curriculum, self._opponents)

    def forget(self) -> None:
        """Results of what was asked for are not wanted any more."""
        if self.ledger.forget():
            self._asked = []

    def close(self) -> None:
        """End the places."""
        self.ledger.close()


def split_wait(blocked: float, busiest: float, *, is_ahead: bool) -> dict[str, float]:
    """Where `blocked` seconds of this process went, while the busiest place collected for `busiest` ones.

    ``collect``: it collected meanwhile. ``wait``: nobody did, for queues, pipes and restarts. With
    `is_ahead`, ``collect_ahead``: it had collected before, while this process learned.
    """
    found = {"collect": min(blocked, busiest), "wait": max(blocked - busiest, 0.0)}
    return {**found, "collect_ahead": max(busiest - blocked, 0.0)} if is_ahead else found


class CollectAhead:
    """The weights that the rollout which comes next is collected with, where that is one update ahead.

    With them, and with the shards as they were, it is asked for again when the run is resumed.
    """

    state_name = "collect_ahead"
    state_version = 1

    def __init__(self, collector: RemoteCollector) -> None:
        self._collector = collector
        self.weights: Mapping[str, np.ndarray] | None = None
        self.restored: Mapping[str, np.ndarray] | None = None
        """Those of a checkpoint; the next rollout takes them."""
        self.version = 0
        """Updates before the policy had these weights."""
        self.has_asked = False

    def state_dict(self) -> dict[str, Any]:
        """The weights; nothing where no rollout is under way."""
        found = self.weights if self.has_asked else self.restored
        return {"weights": dict(found or {}), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._collector.forget()
        self.has_asked, self.version = False, int(state["version"])
        self.restored = {k: np.asarray(part) for k, part in state["weights"].items()} or None
