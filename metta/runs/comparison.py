"""Scores of runs, read from their event logs, and the statistics of their differences."""

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metta.errors import ConfigError
from metta.loggers.events.history import stream_events
from metta.loggers.events.lines import Event
from metta.loggers.events.reader import bad_line
from metta.sim.statistics import (
    Estimate,
    Statistic,
    best_by_lower_bound,
    estimate,
    mean_of_means,
    missing_data,
    pooled_interquartile_mean,
    probability_of_improvement,
)

__all__ = ["ALL", "Comparison", "Evaluation", "compare_groups", "last_evaluation"]

ALL = "all simulations"
"""Name of the row over several simulations, whose scores are scaled to 0..1 first."""
MIN_RUNS, MIN_EPISODES = 3, 10
"""Fewer are not enough for an interval."""


class Evaluation(NamedTuple):
    """The newest evaluation of a run."""

    epoch: int
    scores: dict[str, float]
    """Simulation -> mean return."""
    episodes: dict[str, list[float]]
    """Simulation -> return of each episode; older logs have none."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of groups of runs."""

    unit: str
    """What the bootstrap resamples: ``runs``, if every group has several, else ``episodes``."""
    simulations: list[str]
    """Simulations that every run has scores of."""
    left_out: list[str]
    """Simulations that only some runs have."""
    estimates: dict[str, dict[str, Estimate]]
    """Simulation -> group -> interquartile mean."""
    means: dict[str, dict[str, Estimate]]
    """Simulation -> group -> mean, which is what returns of 0 or 1 need."""
    improvements: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    """(group, other group) -> how likely a score of the first is above one of the second."""
    best: str = ""
    """The group with the highest lower bound; empty if there is not enough data."""
    missing: str = ""
    """Which data is missing, if there is not enough."""


def last_evaluation(path: Path, epoch: int | None = None) -> Evaluation | None:
    """The evaluation of the last epoch in a log, or of `epoch`; None if it has none.

    Epochs that were lost when a run was resumed do not count.
    """
    found: Evaluation | None = None
    for event in stream_events(path, {"evaluation"}) if os.path.lexists(path) else ():
        evaluation = _evaluation(event, path)
        if epoch not in (None, evaluation.epoch):
            continue
        if found is None or evaluation.epoch >= found.epoch:
            found = evaluation
    return found


def _evaluation(event: Event, path: Path) -> Evaluation:
    payload = event.payload
    try:
        scores = payload["scores"]
        simulations = _numbers(scores.get("simulation_scores", scores))
        details: Mapping[str, Any] = (
            scores.get("episodes", {}) if "simulation_scores" in scores else {}
        )
        episodes = {name: [float(x) for x in one["returns"]] for name, one in details.items()}
        return Evaluation(int(payload["epoch"]), simulations, episodes)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise bad_line(path, f"event {event.sequence}", b"evaluation", error) from error


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Finite scores; the log writes null for others."""
    return {
        name: float(score)
        for name, score in scores.items()
        if isinstance(score, int | float) and math.isfinite(score)
    }


def compare_groups(groups: Mapping[str, Sequence[Evaluation]], *, seed: int = 0) -> Comparison:
    """Compare groups of runs by the simulations that all of them have.

    If every group has several runs, the bootstrap resamples runs, so that intervals show how another
    training would end. Otherwise it resamples episodes: intervals then hold for these policies only.
    """
    runs = [run for members in groups.values() for run in members]
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    shared = [name for name in names if all(name in run.scores for run in runs)]
    if not shared:
        raise ConfigError(
            f"these runs have no simulation in common; they have {', '.join(names) or 'no scores'}"
        )
    unit = "runs" if all(len(members) > 1 for members in groups.values()) else "episodes"
    strata = {
        group: [_scores(members, name, unit) for name in shared]
        for group, members in groups.items()
    }
    estimates = _estimates(pooled_interquartile_mean, strata, shared, seed)
    missing = _missing(strata, shared, unit)
    overall = estimates[ALL if len(shared) > 1 else shared[0]]
    improvements = {
        (ours, others): probability_of_improvement(strata[ours], strata[others], seed=seed)
        for ours, others in itertools.permutations(groups, 2)
    }
    return Comparison(
        unit=unit,
        simulations=shared,
        left_out=[name for name in names if name not in shared],
        estimates=estimates,
        means=_estimates(mean_of_means, strata, shared, seed),
        improvements=improvements,
        best="" if missing else best_by_lower_bound(overall),
        missing=missing,
    )


def _scores(members: Iterable[Evaluation], name: str, unit: str) -> np.ndarray:
    if unit == "runs":
        return np.array([run.scores[name] for run in members])
    return np.array(
        [score for run in members for score in run.episodes.get(name) or [run.scores[name]]]
    )


def _estimates(
    statistic: Statistic, strata: Mapping[str, list[np.ndarray]], shared: list[str], seed: int
) -> dict[str, dict[str, Estimate]]:
    found = {
        name: {
            group: estimate(statistic, [scores[place]], seed=seed)
            for group, scores in strata.items()
        }
        for place, name in enumerate(shared)
    }
    if len(shared) > 1:
        scaled = _scaled(strata, len(shared))
        found[ALL] = {
            group: estimate(statistic, scores, seed=seed) for group, scores in scaled.items()
        }
    return found


def _scaled(
    strata: Mapping[str, list[np.ndarray]], num_simulations: int
) -> dict[str, list[np.ndarray]]:
    """Scores as shares of the way from the lowest to the highest of all groups, in each simulation."""
    scaled: dict[str, list[np.ndarray]] = {group: [] for group in strata}
    for place in range(num_simulations):
        everything = np.concatenate([scores[place] for scores in strata.values()])
        low, width = float(everything.min()), float(np.ptp(everything)) or 1.0
        for group, scores in strata.items():
            scaled[group].append((scores[place] - low) / width)
    return scaled


def _missing(strata: Mapping[str, list[np.ndarray]], shared: list[str], unit: str) -> str:
    if unit == "runs":
        counts = {group: len(scores[0]) for group, scores in strata.items()}
        return missing_data(counts, MIN_RUNS, unit)
    counts = {
        f"{group} in {name}": len(scores[place])
        for group, scores in strata.items()
        for place, name in enumerate(shared)
    }
    return missing_data(counts, MIN_EPISODES, unit)
