"""Learning curves of runs as their logs have them, and their mean over seeds."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metta.errors import MettaError
from metta.loggers.events.history import stream_rows
from metta.sim.statistics import estimate, mean_of_means

__all__ = ["Curve", "mean_curve", "reward_curve"]

Curve = list[tuple[float, float]]
"""(agent step, mean return of the last 100 episodes), in order."""

_REWARD = "overview/reward"
_MOST_POINTS = 300
"""Of the curve of one run; of more records, every second is left out, or three of four, and so on."""
_NUM_COMMON = 100
"""Steps at which runs are averaged."""


def reward_curve(events_file: Path) -> Curve:
    """The curve of a run up to its newest record; empty if its log cannot be read from here."""
    kept: Curve = []
    newest, stride, count = None, 1, 0
    try:
        for row in stream_rows(events_file, with_late_scores=False):
            reward = row.metrics.get(_REWARD, math.nan)
            if not math.isfinite(reward):  # no episode has ended yet
                continue
            newest = float(row.agent_step), float(reward)
            if count % stride == 0:
                kept.append(newest)
            count += 1
            if len(kept) >= _MOST_POINTS:
                kept, stride = kept[::2], 2 * stride
    except (MettaError, OSError, TypeError):
        return []
    if newest is not None and newest != kept[-1]:
        kept.append(newest)
    return kept


def mean_curve(
    curves: Sequence[Curve],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Steps, mean over the runs, and both ends of its 95 % interval, where all runs have a curve."""
    known = [np.array(curve) for curve in curves if curve]
    if not known:
        return [], [], [], []
    begin = max(points[0, 0] for points in known)
    end = min(points[-1, 0] for points in known)
    steps = np.linspace(begin, end, _NUM_COMMON) if end > begin else np.array([begin])
    values = np.array([np.interp(steps, points[:, 0], points[:, 1]) for points in known])
    found = [estimate(mean_of_means, [column]) for column in values.T]
    return (
        steps.tolist(),
        [one.value for one in found],
        [one.low for one in found],
        [one.high for one in found],
    )
