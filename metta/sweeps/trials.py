"""How the trials of a sweep stand: computed from the events of its log, and from nothing else."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from metta.sim.statistics import Estimate

__all__ = [
    "Event",
    "EventKind",
    "RunResult",
    "Trial",
    "TrialState",
    "Trials",
    "best_of",
    "pareto_front",
]

EventKind = Literal["ask", "report", "prune", "seeds", "tell"]
TrialState = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class Event:
    """One line of a sweep's log."""

    kind: EventKind
    """`ask`: a trial begins; `report`: its first run has reached a rung; `prune`: it ends there; `seeds`:
    its other runs begin; `tell`: it is done or has failed."""
    trial: int
    """From 1."""
    payload: Mapping[str, Any]
    time: float = 0.0
    """Seconds since 1970."""


@dataclass(frozen=True)
class RunResult:
    """What came of one run of a trial."""

    run: str
    seed: int
    score: float
    low: float
    high: float
    """Of the interval over its episodes; the score itself if the objective is the reward."""
    agent_step: int
    train_seconds: float
    cpu_seconds: float
    reward: float | None = None
    """Mean return of the last 100 episodes of training."""


@dataclass
class Trial:
    """One choice of values, and its runs."""

    number: int
    values: dict[str, Any]
    """Path of a setting -> its value."""
    state: TrialState = "running"
    reports: dict[int, float | None] = field(default_factory=dict)
    """Rung -> return there; None if no episode had ended."""
    has_all_seeds: bool = False
    """Whether its runs after the first one have begun too."""
    score: Estimate | None = None
    cost: float | None = None
    runs: tuple[RunResult, ...] = ()
    reason: str = ""
    """Why it was pruned or has failed."""
    asked: float = 0.0
    ended: float | None = None


class Trials(dict[int, Trial]):
    """The trials of a sweep by their numbers.

    trials = Trials(ledger.events("first"))
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__()
        for event in events:
            self.follow(event)

    def follow(self, event: Event) -> None:
        """Take one more event into account."""
        payload = event.payload
        if event.kind == "ask":
            all_at_once = bool(payload["all_seeds"])
            values = dict(payload["values"])
            self[event.trial] = Trial(
                event.trial, values, has_all_seeds=all_at_once, asked=event.time
            )
            return
        trial = self[event.trial]
        match event.kind:
            case "report":
                trial.reports[payload["rung"]] = payload["value"]
            case "prune":
                trial.state, trial.reason, trial.ended = "pruned", payload["reason"], event.time
            case "seeds":
                trial.has_all_seeds = True
            case "tell":
                self._end(trial, event)

    def in_state(self, *states: TrialState) -> list[Trial]:
        """Trials in these states, in order."""
        return [trial for _, trial in sorted(self.items()) if trial.state in states]

    def reported(self, rung: int, *, besides: int) -> list[float]:
        """What other trials had at a rung."""
        return [
            value
            for number, trial in self.items()
            if number != besides and (value := trial.reports.get(rung)) is not None
        ]

    @staticmethod
    def _end(trial: Trial, event: Event) -> None:
        payload = event.payload
        trial.state, trial.reason, trial.ended = payload["state"], payload["reason"], event.time
        trial.runs = tuple(RunResult(**run) for run in payload["runs"])
        if trial.state == "complete":
            trial.score, trial.cost = Estimate(**payload["score"]), payload["cost"]


def best_of(trials: Trials) -> Trial | None:
    """The trial with the best score: by the lower end of its interval where it has several seeds.

    Of equal ones, as where episodes have a highest return, the one whose last episodes of training were
    best: it got there sooner, or more surely.
    """
    complete = [trial for trial in trials.in_state("complete") if trial.score is not None]
    return max(complete, key=_goodness, default=None)


def pareto_front(trials: Trials) -> list[Trial]:
    """Trials that no other one beats in both score and cost, the cheapest first."""
    front: list[Trial] = []
    complete = [trial for trial in trials.in_state("complete") if trial.cost is not None]
    for trial in sorted(complete, key=lambda trial: (trial.cost or 0.0, -_mean(trial))):
        if not front or _mean(trial) > _mean(front[-1]):
            front.append(trial)
    return front


def _mean(trial: Trial) -> float:
    return -math.inf if trial.score is None else trial.score.value


def _goodness(trial: Trial) -> tuple[float, float]:
    if trial.score is None:
        return -math.inf, -math.inf
    rewards = [run.reward for run in trial.runs if run.reward is not None]
    reward = sum(rewards) / len(rewards) if rewards else -math.inf
    return trial.score.low if len(trial.runs) > 1 else trial.score.value, reward
