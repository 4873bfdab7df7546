"""What a job used once it ran evenly: the first fifth of its steps is left out."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["WARM_SHARE", "Point", "Sample", "SteadyState", "steady_state"]

WARM_SHARE = 0.2
"""Share of the steps that counts as warming up: imports, first episodes, compilation."""


class Point(NamedTuple):
    """A job said how far it is."""

    steps: float
    time: float
    """Monotonic seconds, a clock that all processes of a machine share."""


class Sample(NamedTuple):
    """What was used until a moment, in processor seconds."""

    time: float
    tree: float
    """By the job's processes."""
    observer: float
    """By the process that looks."""
    busy: float
    """By all processes of the machine."""
    stolen: float


@dataclass(frozen=True)
class SteadyState:
    """Numbers of the even part of a run."""

    steps_per_second: float
    cpu_seconds_per_million: float
    foreign_cores: float
    """Cores that other processes kept busy, on average."""
    stolen_cores: float


def steady_state(points: Sequence[Point], samples: Sequence[Sample]) -> SteadyState | None:
    """None where a job reported too seldom to tell, or nothing was seen of it."""
    if len(points) < 2 or not samples:
        return None
    last = points[-1]
    first = next(point for point in points if point.steps >= WARM_SHARE * last.steps)
    steps, seconds = last.steps - first.steps, last.time - first.time
    if steps <= 0 or seconds <= 0:
        return None
    before, after = _at(samples, first.time), _at(samples, last.time)
    cpu = after.tree - before.tree
    foreign = after.busy - before.busy - cpu - (after.observer - before.observer)
    return SteadyState(
        steps_per_second=steps / seconds,
        cpu_seconds_per_million=cpu / steps * 1e6,
        foreign_cores=max(0.0, foreign / seconds),
        stolen_cores=(after.stolen - before.stolen) / seconds,
    )


def _at(samples: Sequence[Sample], time: float) -> Sample:
    """Between two samples, as if all had grown evenly; the nearest one outside of them."""
    place = bisect.bisect_left(samples, time, key=lambda sample: sample.time)
    if place in (0, len(samples)):
        return samples[min(place, len(samples) - 1)]
    before, after = samples[place - 1], samples[place]
    share = (time - before.time) / (after.time - before.time)
    return Sample(*(a + share * (b - a) for a, b in zip(before, after, strict=True)))
