"""Evaluations through a queue in PostgreSQL, while workers are killed and the server is restarted.

One trial per job: a policy that a real courier posts, and that real workers play. For every four jobs a
worker dies, mostly one that holds a job, and for every twenty the server ends as in a crash and is
started again; some couriers die, too. In the end each job has one result, in the order in which it was
asked for, and it equals that of an evaluation in this process to the bit.

The first trial is a run that is trained while its queue is away for a minute: it learns what a run learns
whose queue was there all the time, takes no longer for an epoch, and has every score.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.postgres_server import PostgresServer
from faults.evaluation_kills import difference
from faults.training import STEPS_PER_EPOCH, trainer_of
from faults.trial import OK, Trial
from metta.agent.factory import make_policy
from metta.errors import DatabaseError
from metta.jobs.ledger import JobLedger
from metta.jobs.local_workers import LocalWorkers
from metta.jobs.worker_names import worker_name
from metta.jobs.worker_settings import WorkerSettings
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.outcome import Outcome
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.queued import QueuedEvaluation, QueuePlace
from metta.rl.hooks.base import TrainerHook
from metta.store.policies.file import save_policy
from metta.store.policy_store import spaces_of
from metta.testing.digests import DigestHook
from metta.train.train_config import AgentConfig, EvaluationConfig

_ENV, _CONFIG = "CartPole-v1", EvaluationConfig(eval_episodes=2)
_JOBS_PER_KILL, _JOBS_PER_RESTART, _JOBS_PER_COURIER = 4, 20, 50
_MAX_KILLS_OF_A_JOB = 2
"""After three it has failed, as it should."""
_LEASE_SECONDS, _MAX_SECONDS = 5.0, 1800.0
_SEARCH_SECONDS = 5.0
"""For a worker that holds a job."""
_AWAY_SECONDS, _PACE_SECONDS = 60.0, 0.05
_VARIABLE = "METTA_STATS_URL"


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """A run whose queue is away, and `count` jobs."""
    server = PostgresServer()
    try:
        server.start()
        away = _AWAY_SECONDS * min(1.0, count / 200)
        yield away_while_training(server, folder, seed, away)
        yield from disturbed_jobs(server, count, seed, folder)
    finally:
        server.remove()


# jobs


class Disturbances:
    """Kills and restarts what plays, and counts it."""

    def __init__(self, server: PostgresServer, ledger: JobLedger, workers: LocalWorkers) -> None:
        self.server, self.ledger, self.workers = server, ledger, workers
        self.counts: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        """Of the workers that held a job, by its key."""

    def kill_worker(self, numbers: random.Random) -> None:
        """Kill a worker, if possible one that holds a job."""
        deadline = time.monotonic() + numbers.choice((0.0, *[_SEARCH_SECONDS] * 9))
        while time.monotonic() < deadline:
            if self._kill_holder():
                break
            self.replace()
        else:
            _send(numbers.choice(self.workers.pids), signal.SIGKILL)
        self.counts["worker"] += 1
        self.replace()

    def let_wait(self, queued: QueuedEvaluation, count: int) -> None:
        """Stop workers until so many jobs are posted, so that there is something to hold."""
        self.replace()
        stopped = self.workers.pids
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        while len(self.ledger.records()) < count:
            queued.wait(0.02)
        for pid in stopped:
            _send(pid, signal.SIGCONT)

    def _kill_holder(self) -> bool:
        """Stop a worker that holds a job, and kill it if it still does."""
        names = {}
        for pid in self.workers.pids:
            with contextlib.suppress(psutil.Error):
                names[worker_name(pid)] = pid
        for held in self.ledger.records(states=["held"]):
            pid = names.get(held.worker or "")
            if pid is None or self.kills[held.key] == _MAX_KILLS_OF_A_JOB:
                continue
            _send(pid, signal.SIGSTOP)
            [now] = self.ledger.records(keys=[held.key])
            if (now.state, now.worker) == ("held", held.worker):
                self.kills[held.key] += 1
                self.counts["held a job"] += 1
                _send(pid, signal.SIGKILL)
                return True
            _send(pid, signal.SIGCONT)
        return False

    def restart_server(self, numbers: random.Random) -> None:
        """End the server as in a crash, and start it a moment later."""
        self.server.kill()
        time.sleep(numbers.choice((0.0, 0.5, 2.0)))
        self.server.start()
        self.counts["server"] += 1

    def kill_courier(self, queued: QueuedEvaluation) -> None:
        """Kill the program that posts and collects."""
        if queued.pid is not None:
            _send(queued.pid, signal.SIGKILL)
            self.counts["courier"] += 1

    def replace(self) -> None:
        """As whoever started workers does."""
        with contextlib.suppress(DatabaseError):
            self.workers.check(self.ledger)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def disturbed_jobs(server: PostgresServer, count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """One trial per job."""
    numbers, url = random.Random(seed), server.create_database("queue_kills")
    local = PolicyEvaluator(_ENV, _CONFIG, seed=seed)
    queued = QueuedEvaluation(
        PolicyEvaluator(_ENV, _CONFIG, seed=seed), QueuePlace("run", url, "...")
    )
    settings = WorkerSettings(url, lease_seconds=_LEASE_SECONDS)
    expected: list[dict[str, Any]] = []
    outcomes: list[Outcome] = []
    try:
        with JobLedger(url) as ledger, LocalWorkers(settings, 2) as workers:
            disturb = Disturbances(server, ledger, workers)
            for epoch in range(1, count + 1):
                policy = make_policy(*spaces_of(_ENV), AgentConfig(hidden_size=8), seed=epoch)
                expected.append(json.loads(json.dumps(local.play(policy).to_dict())))
                file = save_policy(folder / f"epoch_{epoch:06d}.safetensors", policy)
                queued.submit(EvaluationRequest(epoch, epoch), policy, file)
                if epoch % _JOBS_PER_KILL == 0:
                    disturb.let_wait(queued, epoch)
                    disturb.kill_worker(numbers)
                if epoch % _JOBS_PER_RESTART == 0:
                    disturb.restart_server(numbers)
                if epoch % _JOBS_PER_COURIER == 0:
                    disturb.kill_courier(queued)
                outcomes += queued.collect()
            deadline = time.monotonic() + _MAX_SECONDS
            while queued.unfinished and time.monotonic() < deadline:
                queued.wait(0.5)
                disturb.replace()
                outcomes += queued.collect()
            records = ledger.records()
    finally:
        queued.close()
    verdict = _verdict(count, disturb, [one.state for one in records], outcomes)
    kills = {one.payload["epoch"]: disturb.kills[one.key] for one in records}
    for epoch, result in enumerate(expected, 1):
        outcome = verdict if verdict != OK else _judged(epoch, result, outcomes)
        point = f"its worker was killed {kills.get(epoch, 0)} times"
        yield Trial("queue_kills", seed, point, outcome, detail=dict(disturb.counts))


def _verdict(count: int, disturb: Disturbances, states: list[str], outcomes: list[Outcome]) -> str:
    """ "ok", or what is wrong with the whole."""
    epochs = [one.moment.epoch for one in outcomes]
    if epochs != [*range(1, count + 1)]:
        return f"results of {epochs[:20]}... instead of each of {count} once, in order"
    if states != ["done"] * count:
        return f"jobs are {dict(Counter(states))} instead of {count} done"
    planned = {"worker": count // _JOBS_PER_KILL, "server": count // _JOBS_PER_RESTART}
    missed = {k: n for k, n in planned.items() if disturb.counts[k] < n}
    return f"not enough disturbances: {dict(disturb.counts)}" if missed else OK


def _judged(epoch: int, expected: dict[str, Any], outcomes: list[Outcome]) -> str:
    found = outcomes[epoch - 1]
    if found.results is None:
        return f"no result: {found.error}"
    told = json.loads(json.dumps(found.results.to_dict()))
    return OK if told == expected else f"{told} instead of {expected}"[:600]


# a run


class Pace(TrainerHook):
    """Lets epochs last, and notes how long training takes beside that."""

    order = 1000

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_epoch_start(self) -> None:
        time.sleep(_PACE_SECONDS)
        if self._begin:
            self.seconds.append(time.monotonic() - self._begin - _PACE_SECONDS)
        self._begin = time.monotonic()


def away_while_training(
    server: PostgresServer, folder: Path, seed: int, away_seconds: float
) -> Trial:
    """A run whose queue is away for so long equals one whose queue is there."""
    epochs = 30 + round(1.2 * away_seconds / _PACE_SECONDS)
    whole = _trained(server, folder / "whole", epochs, None)
    away = _trained(server, folder / "away", epochs, away_seconds)
    outcome = difference(folder / "whole", folder / "away")
    if outcome == OK and max(away) > max(0.5 * away_seconds, 10 * max(whole)):
        outcome = f"an epoch took {max(away):.3f} s, without the pause at most {max(whole):.3f} s"
    middle, longest = statistics.median, max
    times = {
        "epochs": epochs,
        "median_ms": [round(1000 * middle(one), 2) for one in (whole, away)],
        "longest_ms": [round(1000 * longest(one), 2) for one in (whole, away)],
    }
    point = f"the queue is away for {away_seconds:g} s of a run"
    return Trial("queue_kills", seed, point, outcome, detail=times)


def _trained(
    server: PostgresServer, folder: Path, epochs: int, away_seconds: float | None
) -> list[float]:
    """Train a run in a folder; returns the seconds of its epochs."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = url = server.create_database(f"queue_{folder.name}")
    pace = Pace()
    changes = {
        "where": "queue",
        "evaluate_interval": 10,
        "checkpoint_interval": 20,
        "total_timesteps": epochs * STEPS_PER_EPOCH,
    }
    try:
        with (
            LocalWorkers(WorkerSettings(url, lease_seconds=_LEASE_SECONDS), 1),
            trainer_of("evaluated-background", folder, **changes) as trainer,
        ):
            trainer.add_hook(DigestHook(folder / "digests.jsonl"))
            trainer.add_hook(pace)
            outage = threading.Thread(target=_go_away, args=(server, away_seconds))
            outage.start()
            trainer.train()
            outage.join()
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before
    return pace.seconds


def _go_away(server: PostgresServer, seconds: float | None) -> None:
    if seconds is not None:
        time.sleep(0.5)
        server.kill()
        time.sleep(seconds)
        server.start()
