"""The learning curve of a run, read from its event log: episodes, their mean and spread, evaluations.

An episode counts where it *began*. Counted where it ends, a curve is biased: of episodes that begin
together the short ones end first, so at the start of a run the mean would be that of short episodes alone.
For the same reason the mean stops where episodes may still be unfinished.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from metta.loggers.events.history import row_of, stream_events
from metta.loggers.events.lines import Event

__all__ = ["CurvePart", "LearningCurve", "read_learning_curve"]

_MAX_POINTS = 4096
"""Episodes that are kept to be drawn; of more, every second is left out, or three of four, and so on."""
_NUM_PARTS = 40
"""The mean is taken over half to all of so many equal parts of a run."""
_RECENT = 500
"""Episodes whose lengths say how long one may still be unfinished."""
_LONG = 0.95


class CurvePart(NamedTuple):
    """Episodes that began in one part of a run."""

    agent_step: float
    """Middle of the part."""
    mean: float
    std: float
    num_episodes: int


@dataclass
class LearningCurve:
    """What a picture of learning shows; steps are agent steps."""

    episodes: list[tuple[float, float]] = field(default_factory=list)
    """(where it began, return) of episodes, the last ones included."""
    parts: list[CurvePart] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """(step, mean score over the simulations)."""


def read_learning_curve(events_file: Path) -> LearningCurve:
    """The curve of a run, also from before it was resumed; what a crash took back does not count.

    Takes little memory, however long the log is.
    """
    curve, points, parts = LearningCurve(), _Points(), _Parts()
    recent: deque[float] = deque(maxlen=_RECENT)
    last_step = 0
    for step, rows, stats in _reports(events_file, curve):
        returns, lengths = stats.get("episode_return", ()), stats.get("episode_length", ())
        for total, length in zip(returns, lengths, strict=False):
            if total is None or length is None:  # not finite
                continue
            begin = max(0.0, step - length * rows)
            points.add(begin, total)
            parts.add(begin, total)
            recent.append(length * rows)
        last_step = step
    curve.episodes = points.kept
    unfinished = sorted(recent)[int(_LONG * (len(recent) - 1))] if recent else 0.0
    curve.parts = parts.until(max(last_step - unfinished, last_step / 2))
    return curve


def _reports(path: Path, curve: LearningCurve) -> Iterator[tuple[int, float, Mapping[str, Any]]]:
    """(step, agents that step together, statistics) of each record with episodes; notes evaluations."""
    horizon, before = math.nan, (0, 0)
    waiting: Mapping[str, Any] = {}
    for event in stream_events(path, {"run_start", "episodes", "metrics", "evaluation"}):
        payload = event.payload
        match event.kind:
            case "run_start":
                horizon = _horizon_of(payload)
            case "episodes":  # the record of its epochs follows, unless it was taken back
                waiting = payload.get("stats") or {}
            case "evaluation":
                _note_evaluation(curve, event)
            case "metrics":
                row = row_of(event, path)
                steps, epochs = row.agent_step - before[0], row.epoch - before[1]
                if epochs <= 0:
                    continue  # a last record with scores only
                rows = steps / (epochs * horizon) if horizon > 0 else 1.0
                before = row.agent_step, row.epoch
                yield row.agent_step, rows, waiting
                waiting = {}


def _horizon_of(payload: Mapping[str, Any]) -> float:
    """Steps of each environment in an epoch, as the start of a run tells; NaN if it does not."""
    attributes = payload.get("attributes")
    found = attributes.get("rollout/horizon") if isinstance(attributes, Mapping) else None
    return float(found) if isinstance(found, int | float) else math.nan


def _note_evaluation(curve: LearningCurve, event: Event) -> None:
    scores, step = event.payload.get("scores"), event.payload.get("agent_step")
    if not isinstance(scores, Mapping) or not isinstance(step, int):
        return
    found = scores.get("simulation_scores", scores)
    numbers = [n for n in found.values() if isinstance(n, int | float) and math.isfinite(n)]
    if numbers:
        curve.evaluations.append((step, sum(numbers) / len(numbers)))


class _Points:
    """Points evenly thinned out."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, float]] = []
        self._stride = self._count = 0

    def add(self, step: float, value: float) -> None:
        self._stride = self._stride or 1
        if self._count % self._stride == 0:
            self.kept.append((step, value))
        self._count += 1
        if len(self.kept) > _MAX_POINTS:
            self.kept, self._stride = self.kept[::2], 2 * self._stride


class _Parts:
    """Moments of the episodes that began in each of equal parts; parts grow in pairs with the run."""

    def __init__(self) -> None:
        self._width = 1.0
        self._sums: dict[int, tuple[int, float, float]] = {}

    def add(self, step: float, value: float) -> None:
        while step >= self._width * _NUM_PARTS:
            self._width *= 2
            self._sums = self._merged()
        place = int(step // self._width)
        self._sums[place] = _joined(self._sums.get(place), (1, value, 0.0))

    def _merged(self) -> dict[int, tuple[int, float, float]]:
        merged: dict[int, tuple[int, float, float]] = {}
        for place, moments in self._sums.items():
            merged[place // 2] = _joined(merged.get(place // 2), moments)
        return merged

    def until(self, step: float) -> list[CurvePart]:
        """Parts that end by `step`; the first one always."""
        places = sorted(self._sums)
        kept = [place for place in places if (place + 1) * self._width <= step] or places[:1]
        return [self._part(place) for place in kept]

    def _part(self, place: int) -> CurvePart:
        count, mean, squares = self._sums[place]
        middle = (place + 0.5) * self._width
        return CurvePart(middle, mean, math.sqrt(squares / count), count)


def _joined(
    first: tuple[int, float, float] | None, second: tuple[int, float, float]
) -> tuple[int, float, float]:
    """Count, mean and squared deviations of two samples together (Chan et al. 1979)."""
    if first is None:
        return second
    count = first[0] + second[0]
    delta = second[1] - first[1]
    mean = first[1] + delta * second[0] / count
    squares = first[2] + second[2] + delta**2 * first[0] * second[0] / count
    return count, mean, squares
