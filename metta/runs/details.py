"""What a run did, in full: its last numbers, scores, policies and replays."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metta.loggers.events.history import row_of, stream_events
from metta.loggers.events.lines import Event
from metta.loggers.number_text import shown_number
from metta.runs.summary import UNREADABLE, seconds_since, shown_time
from metta.untrusted.text import printable

__all__ = ["RunDetails", "Saved", "Scores", "details_from_log"]

MAX_SAVED = 1000
"""Policies, and replays, that are shown: the newest."""


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
    """The scores of the last evaluation."""

    epoch: int
    suite: str
    """Empty if it has no name."""
    simulations: dict[str, float]
    """A score that is not a finite number is NaN."""

    def to_dict(self) -> dict[str, Any]:
        """Scores by suite, category and simulation, as plain data."""
        # as `EvalRewardSummary` does, which would import torch; a test compares them
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
    """What is shown of one run beyond its line in the list."""

    last_heartbeat: float | None = None
    """Seconds since 1970."""
    layout: str | None = None
    """Shards, ranks and what collects, when training last began; None: one process does all."""
    restarts: list[str] = field(default_factory=list)
    """Why processes or actors that collect were replaced."""
    rank_restarts: list[str] = field(default_factory=list)
    """Why all ranks were started again."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each; NaN if it was not finite."""
    scores: Scores | None = None
    policies: list[Saved] = field(default_factory=list)
    replays: list[Saved] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "last_heartbeat": self.last_heartbeat,
            "layout": self.layout,
            "restarts": self.restarts,
            "rank_restarts": self.rank_restarts,
            "metrics": {name: _plain(number) for name, number in self.metrics.items()},
            "scores": None if self.scores is None else self.scores.to_dict(),
            "policies": [asdict(policy) for policy in self.policies],
            "replays": [asdict(replay) for replay in self.replays],
        }

    def lines(self) -> Iterator[str]:
        """Lines of text, `printable`; empty parts are left out."""
        yield from map(printable, self._raw_lines())

    def _raw_lines(self) -> Iterator[str]:
        if self.last_heartbeat is not None:
            ago = seconds_since(self.last_heartbeat)
            yield f"last heartbeat: {shown_time(self.last_heartbeat)}, {ago:,.0f} s ago"
        if self.layout is not None:
            yield f"computed as: {self.layout}"
        for what, reasons in (
            ("a collecting process was replaced", self.restarts),
            ("all ranks were started again", self.rank_restarts),
        ):
            if reasons:
                again = f"{len(reasons)} times" if len(reasons) > 1 else "once"
                yield f"{what} {again}, the last time because {reasons[-1]}"
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
    yield f"  {suite:<{width}}  {shown_number(scores['score'])}"
    for category, score in scores["categories"].items():
        yield f"    {category:<{width - 2}}  {shown_number(score)}"
        for name, one in scores["simulations"].items():
            if name != category and name.split("/", 1)[0] == category:
                yield f"      {name:<{width - 4}}  {shown_number(one)}"


def details_from_log(path: Path) -> RunDetails:
    """Details from an event log, as far as its lines can be read."""
    found = RunDetails()
    try:
        for event in stream_events(path, _READERS):
            _READERS[event.kind](found, event)
    except UNREADABLE:  # the line of the run says that it is broken, and why
        pass
    return found


def _add_heartbeat(found: RunDetails, event: Event) -> None:
    found.last_heartbeat = event.time


def _add_start(found: RunDetails, event: Event) -> None:
    layout = event.payload.get("attributes", {}).get("layout")
    found.layout = None if layout is None else str(layout)


def _add_restart(found: RunDetails, event: Event) -> None:
    found.restarts.append(str(event.payload["reason"]))
    del found.restarts[:-MAX_SAVED]


def _add_rank_restart(found: RunDetails, event: Event) -> None:
    found.rank_restarts.append(str(event.payload["reason"]))
    del found.rank_restarts[:-MAX_SAVED]


def _add_metrics(found: RunDetails, event: Event) -> None:
    found.metrics |= row_of(event).metrics


def _add_scores(found: RunDetails, event: Event) -> None:
    payload = event.payload
    scores = payload["scores"]
    simulations = scores.get("simulation_scores", scores)
    numbers = {str(name): _number(score) for name, score in simulations.items()}
    found.scores = Scores(int(payload["epoch"]), str(payload.get("suite") or ""), numbers)


def _add_policy(found: RunDetails, event: Event) -> None:
    found.policies.append(_saved(event))
    del found.policies[:-MAX_SAVED]


def _add_replay(found: RunDetails, event: Event) -> None:
    found.replays.append(_saved(event))
    del found.replays[:-MAX_SAVED]


def _saved(event: Event) -> Saved:
    payload = event.payload
    epoch, step = int(payload["epoch"]), int(payload["agent_step"])
    return Saved(epoch, step, str(payload["uri"]), payload.get("simulation"))


_READERS = {
    "run_start": _add_start,
    "collector_restart": _add_restart,
    "rank_restart": _add_rank_restart,
    "heartbeat": _add_heartbeat,
    "metrics": _add_metrics,
    "evaluation": _add_scores,
    "policy": _add_policy,
    "replay": _add_replay,
}


def _number(value: Any) -> float:
    """The log writes null for what is not finite."""
    return math.nan if value is None else float(value)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _plain(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number
