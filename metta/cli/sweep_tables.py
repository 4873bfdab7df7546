"""What came of a sweep, as text and as JSON."""

import json
import shlex
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

__all__ = ["best_lines", "list_lines", "shown_json", "status_lines", "train_command"]

_STATES: tuple[TrialState, ...] = ("complete", "running", "pruned", "failed")


def status_lines(definition: SweepDefinition, events: Sequence[Event]) -> Iterator[str]:
    """How the sweep stands, and a table of its trials."""
    trials = Trials(events)
    yield f"sweep {definition.name}: {_counts(definition, trials)}; {_aims(definition)}"
    has_cost = definition.cost != "none"
    names = [one.name for one in definition.ranges]
    head = ["trial", "state", _score_title(definition), *(["cost"] if has_cost else []), *names, ""]
    rows = [head]
    for trial in trials.values():
        cost = [shown_cost(definition, trial.cost)] if has_cost else []
        values = [shown_value(trial.values[one.path]) for one in definition.ranges]
        about = _first_line(trial.reason) or _progress(definition, trial)
        score = shown_score(trial.score)
        rows.append([str(trial.number), trial.state, score, *cost, *values, about])
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


def list_lines(sweeps: Sequence[tuple[SweepDefinition, Sequence[Event]]]) -> Iterator[str]:
    """A table of sweeps."""
    rows = [["sweep", "trials", "runs each", "best", "settings that vary"]]
    for definition, events in sweeps:
        trials = Trials(events)
        best = best_of(trials)
        ended = len(trials) - len(trials.in_state("running"))
        names = " ".join(one.describe() for one in definition.ranges) or "none: several seeds"
        score = shown_score(best.score) if best else "-"
        counts = f"{ended} of {definition.trials}", str(definition.seeds)
        rows.append([definition.name, *counts, score, names])
    yield table(rows)


def shown_json(definition: SweepDefinition, events: Sequence[Event], action: str) -> str:
    """Status or best as one JSON object."""
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
    if action == "best":
        return json.dumps(about)
    about["counts"] = {state: len(trials.in_state(state)) for state in _STATES}
    about["trials"] = [_plain(definition, trial) for trial in trials.values()]
    return json.dumps(about)


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


def _counts(definition: SweepDefinition, trials: Trials) -> str:
    ended = len(trials) - len(trials.in_state("running"))
    counts = {state: len(trials.in_state(state)) for state in _STATES if state != "complete"}
    others = "".join(f", {count} {state}" for state, count in counts.items() if count)
    return f"{ended} of {definition.trials} trials ended{others}"


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
