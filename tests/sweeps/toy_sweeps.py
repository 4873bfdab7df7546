"""Sweeps whose runs need no training: a worker in this process gives what a formula says."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metta.jobs.job import Job
from metta.loggers import EventLog
from metta.sweeps.definition import SweepDefinition
from metta.sweeps.driver import SweepDriver
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.space import read_ranges
from metta.train.layers import resolve

RANGES = ("lr=1e-5..1e-2:log", "n_epochs=3..10", "activation=tanh,relu", "clip_coef=0.1..0.3")
TOTAL = 1000


def toy_definition(folder: Path, ranges: Sequence[str] = RANGES, **changes: Any) -> SweepDefinition:
    resolved = resolve("cartpole", [], [f"total_timesteps={TOTAL}"])
    about = resolved.provenance()
    return SweepDefinition(
        name="toy",
        words=("cartpole", f"total_timesteps={TOTAL}"),
        settings={"trainer.curriculum.env": "CartPole-v1", "trainer.total_timesteps": TOTAL},
        provenance=about,
        ranges=read_ranges(ranges, {}),
        runs=str(folder),
        total_timesteps=TOTAL,
        first_seed=1,
        **{"trials": 14, **changes},
    )


def formula(settings: dict[str, Any]) -> float:
    """Best at lr=1e-3, with 7 epochs, relu and a clip of 0.2."""
    rate = math.log10(settings.get("trainer.optimizer.learning_rate", 1e-3)) + 3
    passes = (settings.get("trainer.ppo.update_epochs", 7) - 7) / 4
    clip = 10 * (settings.get("trainer.ppo.clip_coef", 0.2) - 0.2)
    bonus = 0.5 if settings.get("agent.activation") == "relu" else 0.0
    seed = settings["trainer.seed"]
    return 100 * (bonus - rate**2 - passes**2 - clip**2) + seed / 16


def result_of(job: Job) -> dict[str, Any]:
    score = formula(job.payload["settings"])
    return {
        "agent_step": TOTAL,
        "epoch": 10,
        "score": score,
        "episodes": [score - 1, score, score + 1],
        "reward": score / 2,
        "train_seconds": 10.0 + job.payload["settings"].get("trainer.ppo.update_epochs", 7),
        "cpu_seconds": 5.0,
    }


def work_once(ledger: SweepLedger) -> bool:
    """Do the next job, if there is one."""
    job = ledger.take("toy", lease_seconds=60.0)
    return job is not None and ledger.finish(job, result_of(job))


def write_log(folder: Path, rewards: Sequence[float], total: int = TOTAL) -> None:
    """An event log of a run with so many records, at equal distances."""
    folder.mkdir(parents=True, exist_ok=True)
    with EventLog(folder / "events.jsonl") as log:
        log.append("run_start", {"name": folder.name})
        for epoch, reward in enumerate(rewards, 1):
            step = total * epoch // len(rewards)
            row = {"agent_step": step, "epoch": epoch, "metrics": {"overview/reward": reward}}
            log.append("metrics", row)


def driven(ledger: SweepLedger, definition: SweepDefinition, workers: int = 1) -> SweepDriver:
    """The whole sweep, with a worker that takes jobs in order."""
    said: list[str] = []
    driver = SweepDriver(ledger, definition, workers=workers, say=said.append)
    while not driver.step():
        work_once(ledger)
    assert len(said) == definition.trials
    return driver
