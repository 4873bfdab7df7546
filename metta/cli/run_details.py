"""What a run did, in full: its last numbers, scores, policies and replays."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metta.cli.run_summary import UNREADABLE, seconds_since, shown_time
from metta.cli.tables import printable
from metta.loggers.event_log import Event, read_events

__all__ = ["RunDetails", "Saved", "Scores", "details_from_log"]


@dataclass
class Saved:
    """A policy or a replay, and where it is."""

    epoch: int
    agent_step: int
    uri: str
    simulation: str | None = None
    """Of a replay."""


@dataclass
class Scores:
    """What the last evaluation found."""

    epoch: int
    suite: str
    """Empty where it has no name."""
    simulations: dict[str, float]
    """A score that is no number is NaN."""

    def to_dict(self) -> dict[str, Any]:
        """Scores by suite, category and simulation, as plain data."""
        # as `EvalRewardSummary` does, with which torch would be loaded; a test compares them
        members: dict[str, list[float]] = {}
        for name, score in self.simulations.items():
            members.setdefault(name.split("/", 1)[0], []).append(score)
        categories = {name: _mean(scores) for name, scores in members.items()}
        return {
            "epoch": self.epoch,
            "suite": self.suite,
            "score": _plain(_mean(list(categories.values()))),
            "categories": {name: _plain(score) for name, score in categories.items()},
            "simulations": {name: _plain(n) for name, n in self.simulations.items()},
        }


@dataclass
class RunDetails:
    """What is told of one run beyond its line in the list."""

    last_heartbeat: float | None = None
    """Seconds since 1970."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each; NaN where it was no number."""
    scores: Scores | None = None
    policies: list[Saved] = field(default_factory=list)
    replays: list[Saved] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON knows it."""
        return {
            "last_heartbeat": self.last_heartbeat,
            "metrics": {name: _plain(number) for name, number in self.metrics.items()},
            "scores": None if self.scores is None else self.scores.to_dict(),
            "policies": [asdict(policy) for policy in self.policies],
            "replays": [asdict(replay) for replay in self.replays],
        }

    def lines(self) -> Iterator[str]:
        """For people, `printable`; parts that are empty are left out."""
        yield from map(printable, self._raw_lines())

    def _raw_lines(self) -> Iterator[str]:
        if self.last_heartbeat is not None:
            ago = seconds_since(self.last_heartbeat)
            yield f"last heartbeat: {shown_time(self.last_heartbeat)}, {ago:,.0f} s ago"
        if self.scores is not None:
            yield from _score_lines(self.scores.to_dict())
        for what, found in (("policies", self.policies), ("replays", self.replays)):
            if found:
                yield f"saved {what}:"
            for one in found:
                simulation = "" if one.simulation is None else f"{one.simulation}  "
                yield f"  epoch {one.epoch:<6}  {simulation}{one.uri}"
        if self.metrics:
            yield "last metrics:"
            width = max(map(len, self.metrics))
            yield from (
                f"  {name:<{width}}  {self.metrics[name]:g}" for name in sorted(self.metrics)
            )


def _score_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    suite = scores["suite"] or "all simulations"
    yield f"last scores: epoch {scores['epoch']}"
    names = {**scores["categories"], **scores["simulations"], suite: None}
    width = max(map(len, names)) + 4
    yield f"  {suite:<{width}}  {_shown(scores['score'])}"
    for category, score in scores["categories"].items():
        yield f"    {category:<{width - 2}}  {_shown(score)}"
        for name, one in scores["simulations"].items():
            if name != category and name.split("/", 1)[0] == category:
                yield f"      {name:<{width - 4}}  {_shown(one)}"


def details_from_log(path: Path) -> RunDetails:
    """What an event log tells, as far as its lines can be read."""
    found = _LogDetails()
    try:
        for event in read_events(path):
            found.add(event)
    except UNREADABLE:  # the line of the run says that it is broken, and why
        pass
    return found.details()


class _LogDetails:
    """Takes in events one by one; what a run that goes on takes back is forgotten."""

    def __init__(self) -> None:
        self.last_heartbeat: float | None = None
        self.by_kind: dict[str, list[tuple[str, int, Any]]] = {}
        """Kind -> (run, epoch, what it says)."""

    def add(self, event: Event) -> None:
        payload = event.payload
        if event.kind in ("run_start", "rewind"):
            kept = int(payload.get("from_epoch", 0))
            for kind, rows in self.by_kind.items():
                still = [row for row in rows if row[0] != event.run or row[1] <= kept]
                self.by_kind[kind] = still
        elif event.kind == "heartbeat":
            self.last_heartbeat = float(event.time)
        elif event.kind == "metrics":
            metrics = {name: _number(n) for name, n in payload["metrics"].items()}
            self._keep(event, int(payload.get("epoch", 0)), metrics)
        elif event.kind == "evaluation":
            scores = payload["scores"]
            simulations = scores.get("simulation_scores", scores)
            numbers = {str(name): _number(score) for name, score in simulations.items()}
            about = Scores(int(payload["epoch"]), str(payload.get("suite") or ""), numbers)
            self._keep(event, about.epoch, about)
        elif event.kind in ("policy", "replay"):
            epoch, step = int(payload["epoch"]), int(payload["agent_step"])
            simulation = payload.get("simulation")
            self._keep(event, epoch, Saved(epoch, step, str(payload["uri"]), simulation))

    def _keep(self, event: Event, epoch: int, about: dict[str, float] | Scores | Saved) -> None:
        self.by_kind.setdefault(event.kind, []).append((event.run, epoch, about))

    def details(self) -> RunDetails:
        scores = [about for *_, about in self.by_kind.get("evaluation", [])]
        metrics: dict[str, float] = {}
        for *_, found in self.by_kind.get("metrics", []):
            metrics |= found
        return RunDetails(
            last_heartbeat=self.last_heartbeat,
            metrics=metrics,
            scores=scores[-1] if scores else None,
            policies=[about for *_, about in self.by_kind.get("policy", [])],
            replays=[about for *_, about in self.by_kind.get("replay", [])],
        )


def _number(value: Any) -> float:
    """The log writes null for what is not finite."""
    return math.nan if value is None else float(value)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _plain(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"
