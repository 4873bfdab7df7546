"""Each task counts once, whatever a pool does with it."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from metta.envs.vec_env import RestoreSupport
from metta.errors import EnvError, RolloutError
from metta.rl.remote import ledger as ledger_module
from metta.rl.remote.ledger import ShardLedger
from metta.rl.remote.pool import Answer
from metta.rl.remote.remote_shard import NOBODY, RemoteShard
from metta.rl.remote.tasks import Moment, ShardFailure, ShardResult, ShardTask
from metta.train.run_config import CollectConfig

SUPPORT = RestoreSupport("snapshot", "")


class ScriptedPool:
    """Two places; a test says what they answer, and sees what they were given."""

    def __init__(self) -> None:
        self.processes = [0, 1]
        self.begun: list[int] = []
        self.given: list[tuple[int, int, ShardTask]] = []
        self.answers: deque[Answer] = deque()
        self.is_closed = False

    def begin(self, moment: Moment) -> None:
        self.begun.append(moment.ticket)

    def give(self, place: int, task: ShardTask) -> None:
        self.given.append((place, self.begun[-1] if self.begun else -1, task))

    def wait(self, seconds: float) -> Sequence[Answer]:
        assert self.answers, "the ledger waits for what never comes"
        return [self.answers.popleft()]

    def restart(self, place: int) -> None:
        self.processes[place] = max(self.processes) + 1

    def close(self) -> None:
        self.is_closed = True

    def answer(
        self, place: int, shard: int, ticket: int, process: int = -1, state: str = ""
    ) -> None:
        given = (state or f"state of {shard}").encode()
        result = ShardResult(ticket, 1, shard, given, SUPPORT)
        there = self.processes[place] if process < 0 else process
        self.answers.append(Answer(place, there, result))

    def fail(self, place: int, reason: str, error: str = "") -> None:
        self.answers.append(Answer(place, self.processes[place], ShardFailure(reason, error)))


def ledger_of(num_shards: int = 2, **settings: Any) -> tuple[ShardLedger, ScriptedPool]:
    pool, nothing = ScriptedPool(), Any
    shards = [
        RemoteShard(number, nothing, nothing, actor_kind="eager", curriculum=None)
        for number in range(num_shards)
    ]
    return ShardLedger(pool, shards, CollectConfig(kind="process", **settings)), pool


def moment(ticket: int) -> Moment:
    return Moment(ticket, {}, 1)


def test_one_result_of_each_task_is_taken() -> None:
    ledger, pool = ledger_of()
    ledger.ask(ShardTask(1, 0, 0, 8), moment(1))
    pool.answer(0, 0, ticket=9, state="of another request")
    pool.answer(0, 0, ticket=1, process=7, state="of a process that is gone")
    pool.answer(0, 0, ticket=1)
    ledger.finish([0])
    ledger.ask(ShardTask(2, 1, 1, 8), moment(1))
    pool.answer(0, 0, ticket=1)
    pool.answer(1, 1, ticket=2)
    ledger.finish([1])
    assert ledger.num_dropped == 3
    ledger.take([0])
    assert ledger.shards[0].state == b"state of 0"
    assert ledger.shards[1].state == b""


def test_one_shard_is_waited_for_while_another_is_under_way() -> None:
    ledger, pool = ledger_of()
    for number in (0, 1):
        ledger.ask(ShardTask(number, 0, number, 8), moment(1))
    pool.answer(1, 1, ticket=1)
    ledger.finish([1])
    ledger.take([1])
    assert ledger.shards[1].num_rollouts == 1
    pool.answer(0, 0, ticket=0)
    ledger.finish([0, 1])


def test_a_task_is_given_again_with_its_own_moment_and_state() -> None:
    ledger, pool = ledger_of()
    first, second = moment(1), moment(2)
    ledger.ask(ShardTask(1, 0, 0, 8), first)
    pool.answer(0, 0, ticket=1)
    ledger.finish([0])
    ledger.take([0])
    ledger.ask(ShardTask(2, 1, 0, 8), first)
    ledger.ask(ShardTask(3, 0, 1, 8), second)
    assert [task.state for _, _, task in pool.given] == [None, None, None]
    pool.fail(0, "it ended")
    pool.answer(1, 1, ticket=3)
    ledger.finish([1])
    place, begun, task = pool.given[-1]
    assert (place, begun, task.ticket, task.state) == (0, 1, 2, b"state of 0")
    assert pool.begun == [1, 2, 1]
    assert ledger.num_restarts == 1


def test_an_error_of_a_task_is_raised_for_its_shard_alone() -> None:
    ledger, pool = ledger_of()
    for number in (0, 1):
        ledger.ask(ShardTask(number, 0, number, 8), moment(1))
    ledger.shards[0].holder = 0
    pool.fail(0, "no such place", "EnvError")
    pool.answer(1, 1, ticket=1)
    ledger.finish([1])
    with pytest.raises(EnvError, match="no such place"):
        ledger.finish([0])
    assert ledger.shards[0].holder == NOBODY
    assert ledger.num_restarts == 0
    ledger.ask(ShardTask(5, 0, 0, 8), moment(1))
    pool.fail(0, "Traceback", "KeyError")
    with pytest.raises(RolloutError, match="collecting failed elsewhere"):
        ledger.finish([0])


def test_a_place_that_says_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(ledger_module.time, "monotonic", lambda: now[0])
    ledger, pool = ledger_of(task_timeout_seconds=5.0)
    ledger.ask(ShardTask(0, 0, 0, 8), moment(1))
    ledger.ask(ShardTask(1, 0, 1, 8), moment(1))
    now[0] += 64.0  # a process may take a minute to start
    pool.answer(1, 1, ticket=1)
    ledger.finish([1])
    assert ledger.num_restarts == 0
    now[0] += 2.0
    ledger.ask(ShardTask(2, 1, 1, 8), moment(1))
    pool.answer(1, 1, ticket=2)
    ledger.finish([1])
    assert pool.processes == [2, 1]
    assert pool.given[-1][0] == 0


def test_a_place_that_is_not_replaced_any_more_is_not_asked() -> None:
    ledger, pool = ledger_of(max_actor_restarts=0)
    ledger.ask(ShardTask(0, 0, 0, 8), moment(1))
    pool.fail(0, "it ended")
    with pytest.raises(RolloutError, match="it ended; 0 restarts within an hour did not help"):
        ledger.finish([0])
    with pytest.raises(RolloutError, match="it ended"):
        ledger.ask(ShardTask(1, 0, 0, 8), moment(1))
    assert len(pool.given) == 1


def test_what_is_forgotten_is_asked_for_with_its_state() -> None:
    ledger, pool = ledger_of()
    assert not ledger.forget()
    ledger.ask(ShardTask(1, 0, 0, 8), moment(1))
    pool.answer(0, 0, ticket=1)
    ledger.finish([0])
    ledger.take([0])
    ledger.ask(ShardTask(2, 1, 0, 8), moment(1))
    assert ledger.forget()
    ledger.ask(ShardTask(3, 1, 0, 8), moment(1))
    assert pool.given[-1][2].state == b"state of 0"
    ledger.close()
    assert pool.is_closed
