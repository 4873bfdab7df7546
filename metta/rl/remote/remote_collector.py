"""`RemoteCollector`: rollouts whose shards are collected elsewhere, each of them counted once."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from metta import errors
from metta.envs.vec_env import VecEnv
from metta.envs.workers.supervision import RestartBudget
from metta.errors import MettaError, MettaWarning, RolloutError
from metta.rl.collect.collector import CollectedPart
from metta.rl.collect.opponents import OpponentPool
from metta.rl.collect.sharded_collector import Experience, ShardedCollector
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ranks import Ranks
from metta.rl.remote.pool import Answer, CollectPool
from metta.rl.remote.remote_shard import NOBODY, RemoteShard
from metta.rl.remote.tasks import Moment, ShardFailure, ShardResult, ShardTask
from metta.timing import Stopwatch
from metta.train.run_config import CollectConfig

__all__ = ["CollectAhead", "RemoteCollector", "split_wait"]

_LOOK_SECONDS = 1.0
"""How often it is looked whether a place hangs."""
_START_SECONDS = 60.0
"""What a process may take to start, beside the time of its first task."""


@dataclass
class _Asked:
    """A task that has no result yet."""

    task: ShardTask
    place: int


class RemoteCollector(ShardedCollector):
    """Asks the places of a pool for the shards of each rollout, and asks again where one is gone.

    What a shard gives is a function of the moment, its number and its state, so it does not matter where,
    or how often, it is collected; one result of each (rollout, shard) is taken. With `overlap` the
    next rollout is asked for as soon as one is complete, with the weights of that moment: from the second
    rollout on, weights are one update old.
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
        self._opponents = opponents
        self._budget = RestartBudget(config.max_actor_restarts)
        self._ticket = 0
        self._asked: list[ShardTask] = []
        """The rollout that was asked for last."""
        # the ledger: by shard, what that rollout has no result of, and the results
        self._open: dict[int, _Asked] = {}
        self._results: dict[int, Answer] = {}
        # when each place began what it does now, or gave its last answer
        self._heard = [time.monotonic() + _START_SECONDS] * len(pool.processes)
        self.ahead = CollectAhead(self)
        self.num_restarts = self.num_dropped = 0
        """Processes that were replaced, and results that came for a second time."""
        self.on_restart: list[Callable[[int, str], None]] = []
        """Called with the place and the reason when a process or an actor is replaced."""
        self.timer = Stopwatch()
        """``collect``, ``wait``, ``collect_ahead`` as of `split_wait`; ``transfer``: what this process
        does to send weights and to take results."""

    def begin(self) -> None:
        """Let all environments be made."""
        for place, shard in enumerate(self.shards):
            task = ShardTask(self._ticket, 0, shard.number, 0)
            self._give(_Asked(task, place % len(self.pool.processes)))
        self._finish()
        self._take_results()

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
        split = split_wait(blocked, self._busiest(), is_ahead=self.config.overlap)
        for name, seconds in split.items():
            self.timer.add(name, seconds)
        with self.timer("transfer"):
            self._take_results()
        return [shard.part for shard in self.shards if shard.part is not None]

    def _busiest(self) -> float:
        """Seconds in which the place that had most to do collected this rollout."""
        places: dict[int, float] = {}
        for place, _, outcome in self._results.values():
            if isinstance(outcome, ShardResult):
                places[place] = places.get(place, 0.0) + outcome.seconds
        return max(places.values(), default=0.0)

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
            self.pool.begin(self._moment(self.num_rollouts))
            for index, task in enumerate(self._asked):
                self._give(_Asked(task, index % len(self.pool.processes)))
        self.ahead.has_asked = self.config.overlap

    def _moment(self, number: int) -> Moment:
        ahead, policy = self.ahead, self.ppo.policy
        weights = ahead.restored
        if weights is None:
            if self._opponents is not None:
                self._opponents.begin_rollout(number, policy)
            weights = {name: _array(part) for name, part in policy.state_dict().items()}
            ahead.version = self.ppo.num_updates
        ahead.weights, ahead.restored = weights, None
        curriculum, pool = self.curriculum, self._opponents
        return Moment(
            self._ticket,
            weights,
            torch.get_num_threads(),
            None if curriculum is None else curriculum.state_dict(),
            None if pool is None else _plain(pool.state_dict()),
        )

    def forget(self) -> None:
        """Results of what was asked for are not wanted any more."""
        if not self._open and not self._results:
            return
        self._open.clear()
        self._results.clear()
        self._asked = []
        for shard in self.shards:
            shard.holder = NOBODY  # the places have moved on

    def _give(self, asked: _Asked) -> None:
        """Give a task to its place, with the shard's state unless it is there."""
        task, place = asked.task, asked.place
        if not any(other.place == place for other in self._open.values()):
            self._heard[place] = max(self._heard[place], time.monotonic())
        self._open[task.shard] = asked
        shard = self._shard(task.shard)
        is_there = shard.holder == self.pool.processes[place]
        state = None if is_there or not shard.state else shard.state
        self.pool.give(place, task._replace(state=state))

    def _shard(self, number: int) -> RemoteShard:
        return self.shards[number - self.shards[0].number]

    def _finish(self) -> None:
        """Wait for all that was asked for."""
        while self._open:
            for answer in self.pool.wait(_LOOK_SECONDS):
                self._hear(answer)
            self._replace_hung()

    def _hear(self, answer: Answer) -> None:
        place, process, outcome = answer
        is_present = process == self.pool.processes[place]
        if isinstance(outcome, ShardFailure):
            if is_present:
                self._replace(place, outcome)
            return
        if is_present:
            self._heard[place] = time.monotonic()
        asked = self._open.get(outcome.shard)
        if asked is None or asked.task.ticket != outcome.ticket or not is_present:
            self.num_dropped += 1
            return
        self._results[outcome.shard] = answer
        del self._open[outcome.shard]

    def _replace_hung(self) -> None:
        limit = self.config.task_timeout_seconds
        for place in {asked.place for asked in self._open.values()}:
            if time.monotonic() - self._heard[place] > limit:
                reason = f"collecting process {place} gave no rollout for {limit:g} seconds"
                self._replace(place, ShardFailure(reason))

    def _replace(self, place: int, failure: ShardFailure) -> None:
        """Start the place again, and ask it again for what it owes; raises what is no crash."""
        if failure.error:
            raise _error_of(failure)
        if not self._budget.spend():
            raise RolloutError(
                f"{failure.reason}; {self.config.max_actor_restarts} restarts within an hour did not help. "
                "Find out why it ends, or raise collect.max_actor_restarts"
            )
        self.pool.restart(place)
        self.num_restarts += 1
        for tell in self.on_restart:
            tell(place, failure.reason)
        self._heard[place] = time.monotonic() + _START_SECONDS
        for asked in [a for a in self._open.values() if a.place == place]:
            self._give(asked)

    def _take_results(self) -> None:
        """All shards move on."""
        said = dict[str, None]()
        for answer in self._results.values():
            result = answer.outcome
            assert isinstance(result, ShardResult)
            self._shard(result.shard).take(result, answer.process)
            said.update(dict.fromkeys(result.warnings))
        self._results.clear()
        for text in said:
            warnings.warn(text, MettaWarning, stacklevel=5)

    def close(self) -> None:
        """End the places."""
        self._open.clear()
        self.pool.close()


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


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().to("cpu", copy=True).numpy()
    return array


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Weights of past selves as copies."""
    past = [
        {name: part.detach().cpu().clone() for name, part in one.items()} for one in state["past"]
    ]
    return {**state, "past": past}


def _error_of(failure: ShardFailure) -> Exception:
    """The exception that a task raised, as far as it is one of metta's."""
    kind = getattr(errors, failure.error, None)
    if isinstance(kind, type) and issubclass(kind, MettaError):
        with_text: Any = kind
        try:
            error: Exception = with_text(failure.reason)
        except TypeError:  # it is made of other things than a text
            return RolloutError(failure.reason)
        return error
    return RolloutError(f"collecting failed elsewhere:\n{failure.reason}")
