"""What a job of the queue costs beside its own work: 500 trivial evaluations, two workers.

    python -m benchmarks.job_overhead [--jobs 500] [--workers 2] [--postgres]

Each job plays one episode of CartPole with a tiny policy. Overhead is the time of a worker per job, less
the time of the same function called in this process, both after a warm-up. The start of workers does
not count.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.postgres_server import PostgresServer
from metta.agent.factory import make_policy
from metta.jobs.evaluate import evaluate
from metta.jobs.job import Job, JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.local_workers import LocalWorkers
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings
from metta.rl.evaluate.described import asked_by, describe_evaluator, described_evaluation
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.process import EvaluationRequest
from metta.store.policies.file import read_policy_manifest, save_policy
from metta.store.policy_store import spaces_of
from metta.train.train_config import AgentConfig, EvaluationConfig

_ENV = "CartPole-v1"
_WARM_UP = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metta-jobs-") as folder:
        for number in range(options.rounds):
            if options.postgres:
                with PostgresServer() as server:
                    url = server.create_database(f"jobs_{number}")
                    measure(url, Path(folder), number, options)
            else:
                measure(str(Path(folder) / f"{number}.db"), Path(folder), number, options)
    return 0


def measure(url: str, folder: Path, number: int, options: argparse.Namespace) -> None:
    specs = jobs_of(folder, options.jobs + _WARM_UP)
    own = own_seconds(url, specs[: _WARM_UP + options.jobs // 5])
    settings = WorkerSettings(url, runs=str(folder))
    with JobLedger(url) as ledger, LocalWorkers(settings, options.workers) as workers:
        ledger.post(specs[:_WARM_UP])
        wait_for(ledger, workers, _WARM_UP)
        begin = time.perf_counter()
        ledger.post(specs[_WARM_UP:])
        posted = time.perf_counter()
        wait_for(ledger, workers, len(specs))
        records = [one for one in ledger.records() if one.id > _WARM_UP]
    wall = max(one.ended or 0.0 for one in records) - min(one.started or 0.0 for one in records)
    each = options.workers * wall / len(records)
    print(
        f"round {number}: {len(records)} jobs, {options.workers} workers: {wall:.2f} s, "
        f"{1000 * each:.1f} ms of a worker per job; own work {1000 * own:.1f} ms; overhead "
        f"{1000 * (each - own):.1f} ms; posting {1000 * (posted - begin) / len(records):.2f} ms per job",
        flush=True,
    )


def jobs_of(folder: Path, count: int) -> list[JobSpec]:
    policy = make_policy(*spaces_of(_ENV), AgentConfig(hidden_size=8), seed=1)
    file = save_policy(folder / "policy.safetensors", policy)
    evaluator = PolicyEvaluator(_ENV, EvaluationConfig(eval_episodes=1, eval_envs=1))
    played = describe_evaluator(evaluator, asked_by("queue"))
    digest = read_policy_manifest(file)["policy_hash"]
    specs = []
    for number in range(count):
        payload = described_evaluation(
            {**played, "seed": number}, EvaluationRequest(0, 0), str(file), digest
        )
        specs.append(JobSpec("evaluate", f"job-{number}", "benchmark", payload))
    return specs


def own_seconds(url: str, specs: list[JobSpec]) -> float:
    """Mean time of the jobs after the warm-up, without a queue."""
    seconds, settings = [], WorkerSettings(url)
    with JobLedger(url) as ledger:
        for number, spec in enumerate(specs):
            job = Job(number, spec.kind, spec.key, spec.group, dict(spec.payload), 1, "nobody")
            begin = time.perf_counter()
            evaluate(job, settings, JobWatch(ledger, job, 60.0))
            seconds.append(time.perf_counter() - begin)
    return float(np.mean(seconds[_WARM_UP:]))


def wait_for(ledger: JobLedger, workers: LocalWorkers, count: int) -> None:
    while len(ledger.records(states=["done", "failed"])) < count:
        workers.check(ledger)
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
