"""What came of a sweep, as text and as JSON."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metta.cli.tables import table
from metta.loggers.number_text import shown_number
from metta.runs.summary import summarize
from metta.sim.statistics import Estimate
from metta.sweeps.definition import SweepDefinition, run_name
from metta.sweeps.progress import shown_cost, shown_score
from metta.sweeps.space import shown_value, words_of
from metta.sweeps.trials import Event, Trial, Trials, TrialState, best_of, pareto_front

__all__ = [
    "best_lines",
    "is_done",
    "list_json",
    "list_lines",
    "shown_json",
    "status_lines",
    "train_command",
]

_STATES: tuple[TrialState, ...] = ("complete", "running", "pruned", "failed")


_WAITS = "waiting"
"""The state of an open trial that nobody carries on."""
_STATE_OF = {True: "running", False: _WAITS, None: "not known"}


def status_lines(
    definition: SweepDefinition, events: Sequence[Event], is_running: bool | None = None
) -> Iterator[str]:
    """How the sweep stands, and a table of its trials; `is_running` None: that is not known."""
    trials = Trials(events)
    counts = _counts(definition, trials, is_running)
    yield f"sweep {definition.name}: {counts}; {_aims(definition)}"
    has_cost = definition.cost != "none"
    names = [one.name for one in definition.ranges]
    head = ["trial", "state", _score_title(definition), *(["cost"] if has_cost else []), *names, ""]
    rows = [head]
    for trial in trials.values():
        cost = [shown_cost(definition, trial.cost)] if has_cost else []
        values = [shown_value(trial.values[one.path]) for one in definition.ranges]
        about = _first_line(trial.reason) or _progress(definition, trial)
        score = shown_score(trial.score)
        state = _state(trial, is_running)
        rows.append([str(trial.number), state, score, *cost, *values, about])
    yield table(rows)
    best = best_of(trials)
    if best is not None and definition.ranges:
        yield f"best: trial {best.number}; metta sweep best {definition.name} shows it"


def best_lines(definition: SweepDefinition, events: Sequence[Event]) -> Iterator[str]:
    """The best trial, its runs, and the command that trains it; with a cost, the Pareto front too."""
    trials = Trials(events)
    best = best_of(trials)
    if best is None:
        yield f"no trial of {definition.name} is complete: {_counts(definition, trials)}"
        return
    how = "by the lower end of its interval" if definition.seeds > 1 else "by its mean"
    cost = f", {shown_cost(definition, best.cost)}" if best.cost is not None else ""
    yield (
        f"best {how}: trial {best.number} of {len(trials)}, {definition.objective} "
        f"{shown_score(best.score)}{cost}"
    )
    for word in words_of(definition.ranges, best.values):
        yield f"  {word}"
    yield f"its runs: {' '.join(run.run for run in best.runs)}"
    yield f"train it: {train_command(definition, best)}"
    if definition.cost != "none":
        yield ""
        yield "no other trial beats these in both score and cost:"
        names = [one.name for one in definition.ranges]
        rows = [["trial", _score_title(definition), "cost", *names]]
        for trial in pareto_front(trials):
            values = [shown_value(trial.values[one.path]) for one in definition.ranges]
            cost = shown_cost(definition, trial.cost)
            rows.append([str(trial.number), shown_score(trial.score), cost, *values])
        yield table(rows)


def list_lines(
    sweeps: Sequence[tuple[SweepDefinition, Sequence[Event], bool | None]],
) -> Iterator[str]:
    """A table of sweeps, each with whether a process carries it on."""
    rows = [["sweep", "state", "trials", "runs each", "best", "settings that vary"]]
    for definition, events, is_running in sweeps:
        trials = Trials(events)
        best = best_of(trials)
        ended = len(trials) - len(trials.in_state("running"))
        names = " ".join(one.describe() for one in definition.ranges) or "none: several seeds"
        score = shown_score(best.score) if best else "-"
        counts = f"{ended} of {definition.trials}", str(definition.seeds)
        state = _STATE_OF[is_running]
        state = "done" if is_done(definition, trials) else state
        rows.append([definition.name, state, *counts, score, names])
    yield table(rows)


def list_json(sweeps: Sequence[tuple[SweepDefinition, Sequence[Event], bool | None]]) -> str:
    """All sweeps as one JSON list, each as `shown_json` shows it without its trials."""
    return json.dumps([_about(*one, with_counts=True) for one in sweeps])


def shown_json(
    definition: SweepDefinition,
    events: Sequence[Event],
    action: str,
    is_running: bool | None = None,
) -> str:
    """Status or best as one JSON object."""
    about = _about(definition, events, is_running, with_counts=action != "best")
    if action != "best":
        about["trials"] = [_plain(definition, trial) for trial in Trials(events).values()]
    return json.dumps(about)


def _about(
    definition: SweepDefinition,
    events: Sequence[Event],
    is_running: bool | None,
    *,
    with_counts: bool,
) -> dict[str, Any]:
    trials = Trials(events)
    best = best_of(trials)
    about: dict[str, Any] = {
        "name": definition.name,
        "objective": definition.objective,
        "direction": "maximize",
        "cost": definition.cost,
        "wanted_trials": definition.trials,
        "best": None if best is None else _plain(definition, best),
        "pareto_front": [trial.number for trial in pareto_front(trials)],
    }
    if with_counts:
        about["is_running"] = is_running
        about["counts"] = {state: len(trials.in_state(state)) for state in _STATES}
    return about


def train_command(definition: SweepDefinition, trial: Trial) -> str:
    """The command that trains with the values of a trial."""
    values = words_of(definition.ranges, trial.values)
    return shlex.join(["metta", "train", *definition.words, *values])


def _plain(definition: SweepDefinition, trial: Trial) -> dict[str, Any]:
    score: Estimate | None = trial.score
    return {
        "trial": trial.number,
        "state": trial.state,
        "reason": trial.reason,
        "score": None if score is None else score.to_dict(),
        "cost": trial.cost,
        "values": {one.name: trial.values[one.path] for one in definition.ranges},
        "runs": [vars(run) for run in trial.runs],
        "reports": {
            f"{share:.3g}": trial.reports.get(rung) for rung, share in enumerate(definition.rungs)
        },
        "command": train_command(definition, trial),
    }


def _counts(definition: SweepDefinition, trials: Trials, is_running: bool | None = None) -> str:
    ended = len(trials) - len(trials.in_state("running"))
    found = Counter(_state(trial, is_running) for trial in trials.values())
    others = "".join(
        f", {found[state]} {state}"
        for state in (*_STATES, _WAITS)
        if found[state] and state != "complete"
    )
    return f"{ended} of {definition.trials} trials ended{others}"


def _state(trial: Trial, is_running: bool | None) -> str:
    return _WAITS if trial.state == "running" and is_running is False else trial.state


def is_done(definition: SweepDefinition, trials: Trials) -> bool:
    """Whether all trials have ended."""
    return not trials.in_state("running") and len(trials) >= definition.trials


def _aims(definition: SweepDefinition) -> str:
    cost = f" and a low cost ({definition.cost})" if definition.cost != "none" else ""
    return f"wanted is a high {definition.objective}{cost}"


def _score_title(definition: SweepDefinition) -> str:
    over = "seeds" if definition.seeds > 1 else "episodes"
    interval = (
        "" if definition.objective == "reward" and definition.seeds == 1 else f" (95 % over {over})"
    )
    return f"{definition.objective}{interval}"


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _progress(definition: SweepDefinition, trial: Trial) -> str:
    """How far the runs of a running trial are."""
    if trial.state != "running":
        return ""
    places = range(definition.seeds if trial.has_all_seeds else 1)
    folders = [
        Path(definition.runs) / run_name(definition, trial.number, place) for place in places
    ]
    steps = [summarize(folder).agent_step for folder in folders if folder.is_dir()]
    return f"{shown_number(sum(steps))} steps" if steps else "waits"
