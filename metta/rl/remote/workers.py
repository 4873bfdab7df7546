"""`RemoteWorkers`: workers that collect elsewhere, each of them in the hands of the caller."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.errors import ConfigError, MettaError, MettaWarning, PolicyError, RolloutError
from metta.rl.call_arguments import checked_steps
from metta.rl.collect.collector import report_scores
from metta.rl.collect.opponents import OpponentPool
from metta.rl.collect.rollout_data import empty_rollout
from metta.rl.learn.advantages import advantages_of
from metta.rl.remote.ledger import ShardLedger
from metta.rl.remote.moments import moment_of, weights_of
from metta.rl.remote.remote_shard import RemoteShard
from metta.rl.remote.tasks import Moment, ShardTask
from metta.rl.training_state import StatsTracker
from metta.rollout import Rollout
from metta.train.train_config import TrainerConfig

__all__ = ["RemoteWorker", "RemoteWorkers"]


class RemoteWorkers(Sequence["RemoteWorker"]):
    """A sequence of workers; made by `metta.remote_workers`, and to be closed.

        rollouts = [worker.collect_rollouts(128) for worker in workers]    # one after the other
        rollouts = workers.collect_rollouts(128)                           # all at the same time
        workers.load_weights(trainer.policy)

    Each worker is a shard: its rollouts are a function of its number, of the weights that it had, and of
    its earlier rollouts, wherever they are collected. What a curriculum and opponents know is sent with
    the weights.
    """

    def __init__(
        self,
        config: TrainerConfig,
        policy: Policy,
        ledger: ShardLedger,
        *,
        curriculum: Curriculum | None = None,
        opponents: OpponentPool | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.ledger, self.curriculum = config, ledger, curriculum
        self.origin: dict[str, Any] = dict(origin or {})
        """What the manifests of all rollouts have in common."""
        self.stats = StatsTracker()
        self._architecture, self._opponents = policy.architecture_hash(), opponents
        self._ticket = self._num_loads = 0
        self._is_closed = False
        moment = self.moment(policy)
        self._workers = [RemoteWorker(self, shard, *moment) for shard in ledger.shards.values()]
        self._begin()

    def _begin(self) -> None:
        """Let all environments be made."""
        for number in self.ledger.shards:
            self.ledger.ask(ShardTask(self.next_ticket(), 0, number, 0))
        self.ledger.finish(list(self.ledger.shards))
        self.ledger.take(list(self.ledger.shards))

    def collect_rollouts(self, n_steps: int | None = None) -> list[Rollout]:
        """A rollout of each worker, all collected at the same time."""
        self.start(n_steps)
        return [worker.collect_rollouts(n_steps) for worker in self]

    def start(self, n_steps: int | None = None) -> None:
        """Let every worker that is not under way begin a rollout; returns at once."""
        self.require_open()
        for worker in self:
            if not worker.is_started:
                worker.start(n_steps)

    def load_weights(self, policy: Policy) -> None:
        """Let rollouts that begin from now on be collected with the weights of this policy."""
        self._num_loads += 1
        if self._opponents is not None:
            self._opponents.begin_rollout(self._num_loads, policy)
        moment = self.moment(policy)
        for worker in self:
            worker.use(*moment)

    def moment(self, policy: Policy) -> tuple[Moment, str]:
        """What rollouts with the weights of this policy are a function of, and their hash."""
        self.require_open()
        if not isinstance(policy, Policy):
            raise PolicyError(
                f"load_weights() needs a policy of metta, got a {type(policy).__name__}; give "
                "trainer.policy"
            )
        if policy.architecture_hash() != self._architecture:
            raise PolicyError(
                "load_weights(): this policy has another architecture or other spaces than that of the "
                "workers; make them for it: remote_workers(n, env, trainer.policy)"
            )
        threads = self.config.numerics.threads or 1  # as of runs with several shards
        weights, ticket = weights_of(policy), self.next_ticket()
        moment = moment_of(ticket, weights, self.curriculum, self._opponents, threads=threads)
        return moment, policy.parameter_hash()

    def next_ticket(self) -> int:
        """A number for a request."""
        self._ticket += 1
        return self._ticket

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes of all workers; NaN before the first ends."""
        return self.stats.mean_return

    @property
    def num_restarts(self) -> int:
        """Processes or actors that were replaced."""
        return self.ledger.num_restarts

    def require_open(self) -> None:
        """Refuse what is asked after `close`."""
        if self._is_closed:
            raise RolloutError("these workers were closed; make others with metta.remote_workers")

    def close(self) -> None:
        """End what collects; may be called more than once."""
        if not self._is_closed:
            self._is_closed = True
            self.ledger.close()

    def __enter__(self) -> "RemoteWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._workers)

    @overload
    def __getitem__(self, index: int) -> "RemoteWorker": ...
    @overload
    def __getitem__(self, index: slice) -> "list[RemoteWorker]": ...
    def __getitem__(self, index: int | slice) -> "RemoteWorker | list[RemoteWorker]":
        return self._workers[index]


class RemoteWorker:
    """One worker.

    worker.start(128)                     # returns at once
    data = worker.collect_rollouts()      # what was started; without start(), a new rollout
    """

    def __init__(
        self, workers: RemoteWorkers, shard: RemoteShard, moment: Moment, policy_hash: str
    ) -> None:
        self._workers, self._shard = workers, shard
        self._moment, self._policy_hash = moment, policy_hash
        self._started: ShardTask | None = None
        self._manifest: dict[str, Any] = {}

    @property
    def number(self) -> int:
        """Its place in the sequence, which its seeds depend on."""
        return self._shard.number

    @property
    def is_started(self) -> bool:
        """Whether a rollout is under way, or waits to be taken."""
        return self._started is not None

    def load_weights(self, policy: Policy) -> None:
        """As of `RemoteWorkers.load_weights`, for this worker alone."""
        self.use(*self._workers.moment(policy))

    def use(self, moment: Moment, policy_hash: str) -> None:
        """Collect with this from the next rollout on."""
        self._moment, self._policy_hash = moment, policy_hash

    def start(self, n_steps: int | None = None) -> None:
        """Begin a rollout of `n_steps` per environment (default: the configured horizon) elsewhere."""
        self._workers.require_open()
        if self._started is not None:
            raise RolloutError(
                f"worker {self.number} is collecting {self._started.horizon} steps already; take them "
                "with collect_rollouts() first"
            )
        steps = self._steps(n_steps)
        if steps < 1:
            raise ConfigError(f"start(n_steps={steps}): allowed is 1 or more")
        shard = self._shard
        task = ShardTask(self._workers.next_ticket(), shard.num_rollouts, shard.number, steps)
        self._workers.ledger.ask(task, self._moment)
        self._started = task
        about = {"policy_hash": self._policy_hash, "rollout": shard.num_rollouts}
        self._manifest = {**self._workers.origin, "worker": self.number, **about}

    def _steps(self, n_steps: int | None) -> int:
        default = self._workers.config.rollout.horizon
        return checked_steps(default if n_steps is None else n_steps, "n_steps")

    def collect_rollouts(self, n_steps: int | None = None) -> Rollout:
        """The rollout that was started, or a new one; columns as of `PPOTrainer.collect_rollouts`.

        They are in the memory of this process, on the CPU.
        """
        self._workers.require_open()
        if self._started is None:
            if self._steps(n_steps) < 1:
                text = f"collect_rollouts({n_steps}) collects nothing"
                warnings.warn(text, MettaWarning, stacklevel=2)
                return empty_rollout(self._shard.vec_env.num_rows)
            self.start(n_steps)
        elif n_steps is not None and self._steps(n_steps) != self._started.horizon:
            raise ConfigError(
                f"collect_rollouts({n_steps}): worker {self.number} was started for "
                f"{self._started.horizon} steps; leave n_steps out, or ask for as many"
            )
        try:
            self._workers.ledger.finish([self.number])
        except MettaError:
            self._started = None
            raise
        self._started = None
        return self._take()

    @torch.no_grad()
    def _take(self) -> Rollout:
        workers, shard = self._workers, self._shard
        workers.ledger.take([self.number])
        assert shard.part is not None
        report_scores(workers.curriculum, shard.part.scores)
        workers.stats.add_returns(shard.part.stats["episode_return"])
        columns = dict(shard.experience.columns)
        columns |= advantages_of(columns, workers.config.ppo)
        return Rollout(columns, self._manifest)
