"""`ShardWorker`: collects any shard of a run, wherever it is."""

import time
import warnings
from typing import Any

import torch

from metta.agent.policy import Policy
from metta.envs.vec_env import RestoreSupport
from metta.errors import RolloutError, StateError
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.collect.opponents import OpponentPool, with_opponents
from metta.rl.remote.tasks import CollectSetup, Moment, ShardResult, ShardTask
from metta.rl.resume.environment_state import EnvironmentState
from metta.state_tree import bytes_of_state, state_of_bytes
from metta.stateful import StateRegistry
from metta.versions import library_versions

__all__ = ["ShardWorker"]


class ShardWorker:
    """One process's part of collecting.

        worker = ShardWorker(setup)
        worker.begin(moment)                    # the weights, and what else the rollout is a function of
        result = worker.run(ShardTask(ticket=1, number=0, shard=2, horizon=128))

    Environments of a shard are made for its first task and kept. A task that brings a state continues from
    there, whatever this process did before.
    """

    def __init__(self, setup: CollectSetup) -> None:
        self.setup = setup
        self.policy = setup.policy
        self.pool: OpponentPool | None = None
        play = setup.config.self_play
        if play.learner_share < 1.0:
            # the process that trains adds past selves, and sends all of them
            self.pool = OpponentPool(self.policy, setup.opponents, interval=0, size=play.pool_size)
        self._shards: dict[int, _Shard] = {}
        self._ticket = -1

    def begin(self, moment: Moment) -> None:
        """Take over what the tasks that follow are collected with."""
        if moment.ticket == self._ticket:
            return
        torch.set_num_threads(moment.threads)
        state = {name: torch.from_numpy(part.copy()) for name, part in moment.weights.items()}
        self.policy.load_state_dict(state)
        if self.setup.curriculum is not None and moment.curriculum is not None:
            self.setup.curriculum.load_state_dict(moment.curriculum)
        if self.pool is not None and moment.opponents is not None:
            self.pool.load_state_dict(moment.opponents)
        self._ticket = moment.ticket

    def run(self, task: ShardTask) -> ShardResult:
        """Collect a shard; `EnvError` and the like are those of its environments."""
        begin = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shard = self._shards.get(task.shard)
            if shard is None:
                shard = self._shards[task.shard] = _Shard(self.setup, self.policy, self.pool, task)
            try:
                result = shard.run(task)
            except BaseException:
                del self._shards[task.shard]  # made again for the next task, as of its state
                shard.collector.vec_env.close()
                raise
        found = tuple(dict.fromkeys(str(warning.message) for warning in caught))
        seconds = time.perf_counter() - begin
        return ShardResult(**{**vars(result), "warnings": found, "seconds": seconds})

    def close(self) -> None:
        """Close all environments."""
        for shard in self._shards.values():
            shard.collector.vec_env.close()
        self._shards.clear()


class _Shard:
    """The environments of a shard, and where they are."""

    def __init__(
        self, setup: CollectSetup, policy: Policy, pool: OpponentPool | None, task: ShardTask
    ) -> None:
        config = setup.config
        _require_versions(setup)
        env: Any = setup.source.make()
        if pool is not None:
            share = config.self_play.learner_share
            env = with_opponents(env, pool, share, seed=config.seed, shard=task.shard)
        self._segment = config.rollout.bptt_horizon
        self.collector = RolloutCollector(
            env, policy, self._buffer(policy, env, task.horizon or config.rollout.horizon),
            seed=config.seed, shard=task.shard, actor=setup.actor, curriculum=setup.curriculum,
        )  # fmt: skip
        saving = config.checkpoint
        self.environments = EnvironmentState(self.collector, saving.env_restore)
        self.support: RestoreSupport = self.environments.prepare()
        self.registry = StateRegistry([self.collector, self.environments])

    def _buffer(self, policy: Policy, env: Any, horizon: int) -> RolloutBuffer:
        return RolloutBuffer.for_env(policy, env, horizon, bptt_horizon=self._segment)

    def run(self, task: ShardTask) -> ShardResult:
        collector, before = self.collector, self.environments.num_boundaries
        if task.state is not None:
            self.registry.restore(state_of_bytes(task.state))
        if task.horizon and collector.num_rollouts != task.number:
            raise StateError(
                f"shard {task.shard} is at rollout {collector.num_rollouts}, not at {task.number}; this is "
                "a fault of metta, please report it"
            )
        if task.fresh:
            collector.resume_with_fresh_episodes()
        columns, part = {}, None
        if task.horizon:
            if task.horizon != collector.experience.horizon:
                collector.experience = self._buffer(
                    collector.policy, collector.vec_env, task.horizon
                )
            part = collector.collect_part()
            columns = {
                name: column.numpy() for name, column in collector.experience.columns.items()
            }
        state = bytes_of_state(self.registry.snapshot())
        return ShardResult(
            task.ticket, collector.num_rollouts, task.shard, state, self.support,
            columns, part, collector.num_episodes, self.environments.num_boundaries - before,
        )  # fmt: skip


def _require_versions(setup: CollectSetup) -> None:
    """Processes of a cluster need the libraries of the one that trains."""
    own = library_versions()
    other = [
        f"{name} {version} here, {own.get(name)} there"
        for name, version in setup.versions.items()
        if own.get(name) != version
    ]
    if other:
        raise RolloutError(
            f"the collecting process has other versions than the one that trains: {', '.join(other)}; "
            "install the same on all machines"
        )
