"""A shard is a function of its task, the moment and its state, and not of the process."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from metta import PPOTrainer
from metta.errors import ConfigError, RolloutError, StateError
from metta.rl.remote.make import make_remote_collector
from metta.rl.remote.moments import moment_of, weights_of
from metta.rl.remote.pool import InlinePool
from metta.rl.remote.remote_collector import RemoteCollector
from metta.rl.remote.remote_shard import RemoteShard
from metta.rl.remote.shard_worker import ShardWorker
from metta.rl.remote.tasks import CollectSetup, Moment, ShardFailure, ShardResult, ShardTask
from metta.state_tree import state_of_bytes

SMALL = {"num_envs": 4, "num_shards": 2, "horizon": 6, "num_minibatches": 2, "hidden_size": 8,
         "verbose": False, "recipe": "none", "core": "lstm", "collect.overlap": True}  # fmt: skip


@pytest.fixture(scope="module")
def trainer() -> Iterator[PPOTrainer]:
    with PPOTrainer(None, "CartPole-v1", **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def setup(trainer: PPOTrainer) -> CollectSetup:
    collector = trainer.components.collector
    assert isinstance(collector, RemoteCollector)
    assert isinstance(collector.pool, InlinePool)
    return collector.pool._worker.setup


@pytest.fixture(scope="module")
def moment(trainer: PPOTrainer) -> Moment:
    return moment_of(1, weights_of(trainer.policy))


class Worker(ShardWorker):
    """Results are copied, as they are on their way to another process."""

    def run(self, task: ShardTask) -> ShardResult:
        result = super().run(task)
        columns = {name: column.copy() for name, column in result.columns.items()}
        return dataclasses.replace(result, columns=columns)


def worker_of(setup: CollectSetup, moment: Moment) -> ShardWorker:
    worker = Worker(setup)
    worker.begin(moment)
    return worker


def task(number: int, shard: int = 0, **others: Any) -> ShardTask:
    return ShardTask(1, number, shard, 6, **others)


def same(first: ShardResult, second: ShardResult) -> bool:
    assert first.columns.keys() == second.columns.keys()
    return first.state == second.state and all(
        np.array_equal(first.columns[name], second.columns[name]) for name in first.columns
    )


def test_a_shard_continues_the_same_in_another_process(setup: CollectSetup, moment: Moment) -> None:
    stays = worker_of(setup, moment)
    first = stays.run(task(0))
    second = stays.run(task(1))
    other = worker_of(setup, moment)
    other.run(task(0, shard=1))
    assert same(other.run(task(0)), first)
    moved = worker_of(setup, moment).run(task(1, state=first.state))
    assert same(moved, second)
    assert not same(first, second)


def test_a_task_that_is_repeated_gives_the_same(setup: CollectSetup, moment: Moment) -> None:
    worker = worker_of(setup, moment)
    begun = worker.run(ShardTask(1, 0, 0, 0))
    assert begun.part is None
    assert begun.columns == {}
    first = worker.run(task(0))
    assert same(worker.run(task(0, state=begun.state)), first)


def test_shards_differ(setup: CollectSetup, moment: Moment) -> None:
    worker = worker_of(setup, moment)
    assert not same(worker.run(task(0)), worker.run(task(0, shard=1)))


def test_a_shard_that_is_elsewhere_in_its_episodes_is_refused(
    setup: CollectSetup, moment: Moment
) -> None:
    with pytest.raises(StateError, match="shard 0 is at rollout 0, not at 3"):
        worker_of(setup, moment).run(task(3))


def test_fresh_episodes_begin_where_they_are_wanted(setup: CollectSetup, moment: Moment) -> None:
    worker = worker_of(setup, moment)
    first = worker.run(task(0))
    result = worker.run(task(1, fresh=True))
    assert bool(result.columns["episode_starts"][0].all())
    carried = worker.run(task(1, state=first.state))
    assert not bool(carried.columns["episode_starts"][0].all())


def test_weights_of_the_moment_count(setup: CollectSetup, moment: Moment) -> None:
    worker = worker_of(setup, moment)
    begun = worker.run(ShardTask(1, 0, 0, 0))
    first = worker.run(task(0))
    other = {name: part + 0.5 for name, part in moment.weights.items() if part.dtype == np.float32}
    worker.begin(dataclasses.replace(moment, ticket=2, weights={**moment.weights, **other}))
    assert not same(worker.run(task(0, state=begun.state)), first)


def test_other_versions_are_refused(setup: CollectSetup, moment: Moment) -> None:
    other = dataclasses.replace(setup, versions={**setup.versions, "torch": "1.0"})
    with pytest.raises(RolloutError, match=r"torch 1\.0 here, .* there; install the same"):
        worker_of(other, moment).run(task(0))


def test_errors_become_answers(setup: CollectSetup, moment: Moment) -> None:
    pool = InlinePool(setup)
    pool.begin(moment)
    pool.give(0, task(5))
    [answer] = pool.wait(0.0)
    assert isinstance(answer.outcome, ShardFailure)
    assert answer.outcome.error == "StateError"
    assert pool.wait(0.0) == []
    pool.close()


def test_a_remote_shard_has_the_state_of_the_collector_that_has_it(trainer: PPOTrainer) -> None:
    trainer.collect_rollouts(6)
    collector = trainer.components.collector
    assert isinstance(collector, RemoteCollector)
    for shard in collector.shards:
        assert isinstance(shard, RemoteShard)
        saved = state_of_bytes(shard.state)["collector"]["state"]
        assert shard.state_dict()["num_rollouts"] == saved["num_rollouts"] == shard.num_rollouts


def test_a_collector_elsewhere_is_made_for_environments_made_elsewhere(trainer: PPOTrainer) -> None:
    from metta.envs.factory import make_vec_env

    with pytest.raises(ConfigError, match="exists already"):
        make_remote_collector(
            trainer.config.trainer,
            make_vec_env("CartPole-v1", num_envs=2),
            trainer.ppo,
            trainer.collector.experience,
            trainer.components.ranks,
        )
