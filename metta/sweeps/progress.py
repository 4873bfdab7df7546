"""One line for each trial that ends."""

from metta.loggers.number_text import shown_number
from metta.sim.statistics import Estimate
from metta.sweeps.definition import SweepDefinition
from metta.sweeps.space import shown_values
from metta.sweeps.trials import Trial, Trials, best_of

__all__ = ["ended_line", "shown_cost", "shown_score"]

_UNITS = {"steps": "steps", "wall": "s", "cpu": "CPU s"}


def shown_score(score: Estimate | None) -> str:
    """Mean and interval: ``193.2 (180.1 .. 200)``."""
    if score is None:
        return "-"
    return f"{shown_number(score.value)} ({shown_number(score.low)} .. {shown_number(score.high)})"


def shown_cost(definition: SweepDefinition, cost: float | None) -> str:
    """With its unit: ``12.3 s``."""
    return "-" if cost is None else f"{shown_number(cost)} {_UNITS[definition.cost]}"


def ended_line(definition: SweepDefinition, trials: Trials, trial: Trial) -> str:
    """What came of a trial, and which is the best one so far."""
    values = shown_values(definition.ranges, trial.values)
    name = f"trial {trial.number} of {definition.trials}"
    if trial.state != "complete":
        reason = trial.reason.splitlines()[0] if trial.reason else ""
        return f"{name}  {trial.state} {reason}  {values}".rstrip()
    cost = f"  {shown_cost(definition, trial.cost)}" if definition.cost != "none" else ""
    best = best_of(trials)
    is_best = best is not None and best.number == trial.number
    after = "the best so far" if is_best else f"best: trial {best.number}" if best else ""
    after = f"  {after}" if definition.ranges else ""
    text = f"{name}  {definition.objective} {shown_score(trial.score)}{cost}  {values}".rstrip()
    return f"{text}{after}"
