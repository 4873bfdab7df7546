"""The runs of a trial: what is asked of workers, how far a run has come, and what came of it."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metta.errors import ConfigError, MettaError
from metta.jobs.job import JobRecord, JobSpec
from metta.loggers.events.history import last_event, stream_rows
from metta.sim.statistics import Estimate, estimate, mean_of_means
from metta.sweeps.definition import SweepDefinition, run_name
from metta.sweeps.trials import RunResult
from metta.train.parsing.values import plain_data

__all__ = ["cost_of", "job_key", "jobs_of", "return_at", "run_result", "score_of"]

_SEED = "trainer.seed"
_REWARD = "overview/reward"
_MAX_ATTEMPTS = 10
"""A run continues from its checkpoint, so each attempt gets further; machines may be taken away often."""
_COSTS = {"steps": "agent_step", "wall": "train_seconds", "cpu": "cpu_seconds"}


def job_key(definition: SweepDefinition, trial: int, place: int) -> str:
    """The key of the job that trains one run."""
    return f"sweep/{run_name(definition, trial, place)}"


def jobs_of(
    definition: SweepDefinition, trial: int, values: Mapping[str, Any], places: Sequence[int]
) -> list[JobSpec]:
    """The jobs of a trial, one for each place among its seeds."""
    return [
        JobSpec(
            kind="train",
            key=job_key(definition, trial, place),
            group=definition.group,
            max_attempts=_MAX_ATTEMPTS,
            payload={
                "run": run_name(definition, trial, place),
                **_settings(definition, {**values, _SEED: definition.first_seed + place}),
            },
        )
        for place in places
    ]


def _settings(definition: SweepDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {path: plain_data(value, path) for path, value in values.items()}
    about = dict(definition.provenance["settings"])
    for path, value in plain.items():
        about[path] = {"value": value, "origin": f"sweep {definition.name}", "overrides": []}
    return {
        "settings": {**definition.settings, **plain},
        "provenance": {**definition.provenance, "settings": about},
    }


def return_at(events_file: Path, agent_step: float) -> tuple[bool, float | None]:
    """Whether a run has come so far, and its mean return there; None if no episode had ended.

    It is that of the first record at or after the step, so it does not matter when one looks.
    """
    try:
        if not os.path.lexists(events_file):
            return False, None
        newest = last_event(events_file, "metrics")
        if newest is None or not newest.payload.get("agent_step", 0) >= agent_step:
            return False, None
        for row in stream_rows(events_file, with_late_scores=False):
            if row.agent_step >= agent_step:
                found = row.metrics.get(_REWARD, math.nan)
                return True, float(found) if math.isfinite(found) else None
    except (MettaError, OSError, TypeError):  # it is being written, or cannot be read from here
        pass
    return False, None


def run_result(definition: SweepDefinition, trial: int, place: int, record: JobRecord) -> RunResult:
    """What a run that is done tells; `ConfigError` if it has no score."""
    result = record.result or {}
    name = run_name(definition, trial, place)
    found = result.get("score" if definition.objective == "score" else "reward")
    if not isinstance(found, int | float) or not math.isfinite(found):
        raise ConfigError(
            f"the run {name!r} has no {definition.objective}: "
            + (
                "its last evaluation gave none; set eval_episodes above 0"
                if definition.objective == "score"
                else "no episode ended in it; train for more steps"
            )
        )
    low = high = float(found)
    episodes = [one for one in result.get("episodes") or () if one is not None]
    if definition.objective == "score" and episodes and all(map(math.isfinite, episodes)):
        interval = estimate(mean_of_means, [np.asarray(episodes, np.float64)])
        low, high = interval.low, interval.high
    return RunResult(
        run=name,
        seed=definition.first_seed + place,
        score=float(found),
        low=low,
        high=high,
        agent_step=int(result.get("agent_step") or 0),
        train_seconds=float(result.get("train_seconds") or 0.0),
        cpu_seconds=float(result.get("cpu_seconds") or 0.0),
        reward=_finite(result.get("reward")),
    )


def _finite(number: Any) -> float | None:
    is_number = isinstance(number, int | float) and math.isfinite(number)
    return float(number) if is_number else None


def score_of(runs: Sequence[RunResult]) -> Estimate:
    """Mean over seeds; of one run, its own score with the interval over its episodes."""
    if len(runs) == 1:
        return Estimate(runs[0].score, runs[0].low, runs[0].high, 1)
    return estimate(mean_of_means, [np.array([run.score for run in runs])])


def cost_of(definition: SweepDefinition, runs: Sequence[RunResult]) -> float | None:
    """Mean over seeds of what a run took; None if that is no objective."""
    if definition.cost == "none":
        return None
    return sum(float(getattr(run, _COSTS[definition.cost])) for run in runs) / len(runs)
