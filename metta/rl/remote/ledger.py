"""`ShardLedger`: what was asked of the places of a pool, and what came; each task counts once."""

import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from metta import errors
from metta.envs.workers.supervision import RestartBudget
from metta.errors import MettaError, MettaWarning, RolloutError
from metta.rl.remote.pool import Answer, CollectPool
from metta.rl.remote.remote_shard import NOBODY, RemoteShard
from metta.rl.remote.tasks import Moment, ShardFailure, ShardResult, ShardTask
from metta.train.run_config import CollectConfig

__all__ = ["ShardLedger"]

_LOOK_SECONDS = 1.0
"""How often it is looked whether a place hangs."""
_START_SECONDS = 60.0
"""What a process may take to start, beside the time of its first task."""


@dataclass
class _Asked:
    """A task that has no result yet."""

    task: ShardTask
    moment: Moment | None
    place: int


class ShardLedger:
    """Asks the places of a pool for shards, and asks again where a place is gone.

        ledger.ask(ShardTask(ticket=1, number=0, shard=2, horizon=128), moment)
        ledger.finish({2})
        ledger.take({2})                        # the shard has moved on

    A shard has at most one task that is open. What it gives is a function of the task, its moment and the
    shard's state, so it does not matter how often it is run: one result is taken.
    """

    def __init__(
        self, pool: CollectPool, shards: Sequence[RemoteShard], config: CollectConfig
    ) -> None:
        self.pool, self.config = pool, config
        self.shards = {shard.number: shard for shard in shards}
        places = len(pool.processes)
        self._places = {shard.number: index % places for index, shard in enumerate(shards)}
        self._budget = RestartBudget(config.max_actor_restarts)
        self._begun: Moment | None = None
        """What the pool has for the tasks that it is given."""
        # by shard: what has no result, the results, and the exceptions in their place
        self._open: dict[int, _Asked] = {}
        self._results: dict[int, Answer] = {}
        self._failed: dict[int, Exception] = {}
        self._gone: dict[int, RolloutError] = {}
        """By place, why it is not started again."""
        # when each place began what it does now, or gave its last answer
        self._heard = [time.monotonic() + _START_SECONDS] * places
        self.num_restarts = self.num_dropped = 0
        """Processes that were replaced, and results that came for a second time."""
        self.on_restart: list[Callable[[int, str], None]] = []
        """Called with the place and the reason when a process or an actor is replaced."""

    def ask(self, task: ShardTask, moment: Moment | None = None) -> None:
        """Give a task to the place of its shard; returns at once."""
        place = self._places[task.shard]
        if place in self._gone:
            raise self._gone[place]
        self._give(_Asked(task, moment, place))

    def _give(self, asked: _Asked) -> None:
        """Give a task to its place, with the shard's state unless it is there."""
        task, place = asked.task, asked.place
        if not any(other.place == place for other in self._open.values()):
            self._heard[place] = max(self._heard[place], time.monotonic())
        self._open[task.shard] = asked
        if asked.moment is not None and asked.moment is not self._begun:
            self.pool.begin(asked.moment)
            self._begun = asked.moment
        shard = self.shards[task.shard]
        is_there = shard.holder == self.pool.processes[place]
        state = None if is_there or not shard.state else shard.state
        self.pool.give(place, task._replace(state=state))

    def finish(self, numbers: Collection[int]) -> None:
        """Wait for what was asked of these shards; raises what a task of them raised."""
        while True:
            for number in numbers:
                if number in self._failed:
                    raise self._failed.pop(number)
            if not any(number in self._open for number in numbers):
                return
            for answer in self.pool.wait(_LOOK_SECONDS):
                self._hear(answer)
            self._replace_hung()

    def _hear(self, answer: Answer) -> None:
        place, process, outcome = answer
        is_present = process == self.pool.processes[place]
        if isinstance(outcome, ShardFailure):
            if is_present and outcome.error:
                self._fail(place, outcome)
            elif is_present:
                self._replace(place, outcome.reason)
            return
        if is_present:
            self._heard[place] = time.monotonic()
        asked = self._open.get(outcome.shard)
        if asked is None or asked.task.ticket != outcome.ticket or not is_present:
            self.num_dropped += 1
            return
        self._results[outcome.shard] = answer
        del self._open[outcome.shard]

    def _fail(self, place: int, failure: ShardFailure) -> None:
        """What a place owes will not come: a task raised an exception, and would do so again."""
        for number in [number for number, asked in self._open.items() if asked.place == place]:
            del self._open[number]
            self._failed[number] = _error_of(failure)
            self.shards[number].holder = NOBODY  # it may be in the middle of a rollout

    def _replace_hung(self) -> None:
        limit = self.config.task_timeout_seconds
        for place in {asked.place for asked in self._open.values()}:
            if time.monotonic() - self._heard[place] > limit:
                self._replace(
                    place, f"collecting process {place} gave no rollout for {limit:g} seconds"
                )

    def _replace(self, place: int, reason: str) -> None:
        """Start the place again, and ask it again for what it owes."""
        if not self._budget.spend():
            self._gone[place] = RolloutError(
                f"{reason}; {self.config.max_actor_restarts} restarts within an hour did not help. "
                "Find out why it ends, or raise collect.max_actor_restarts"
            )
            raise self._gone[place]
        self.pool.restart(place)
        self.num_restarts += 1
        for tell in self.on_restart:
            tell(place, reason)
        self._heard[place] = time.monotonic() + _START_SECONDS
        for asked in [a for a in self._open.values() if a.place == place]:
            self._give(asked)

    def busiest(self) -> float:
        """Seconds in which the place that had most to do collected the results that are here."""
        places: dict[int, float] = {}
        for place, _, outcome in self._results.values():
            if isinstance(outcome, ShardResult):
                places[place] = places.get(place, 0.0) + outcome.seconds
        return max(places.values(), default=0.0)

    def take(self, numbers: Collection[int]) -> None:
        """These shards move on by what they gave."""
        said = dict[str, None]()
        for number in numbers:
            answer = self._results.pop(number)
            result = answer.outcome
            assert isinstance(result, ShardResult)
            self.shards[number].take(result, answer.process)
            said.update(dict.fromkeys(result.warnings))
        for text in said:
            warnings.warn(text, MettaWarning, stacklevel=5)

    def forget(self) -> bool:
        """Results of what was asked for are not wanted any more; False: nothing was."""
        if not (self._open or self._results or self._failed):
            return False
        for known in (self._open, self._results, self._failed):
            known.clear()
        for shard in self.shards.values():
            shard.holder = NOBODY  # the places have moved on
        return True

    def close(self) -> None:
        """End the places."""
        self._open.clear()
        self.pool.close()


def _error_of(failure: ShardFailure) -> Exception:
    """The exception that a task raised, as far as it is one of metta's."""
    kind = getattr(errors, failure.error, None)
    if isinstance(kind, type) and issubclass(kind, MettaError):
        try:
            return kind(failure.reason)
        except TypeError:  # it is made of other things than a text
            return RolloutError(failure.reason)
    return RolloutError(f"collecting failed elsewhere:\n{failure.reason}")
