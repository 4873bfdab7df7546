"""Pictures of a sweep, and of one configuration over several seeds."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metta.errors import ConfigError, MissingExtraError
from metta.files import atomic_write
from metta.sweeps.curves import Curve, mean_curve, reward_curve
from metta.sweeps.definition import SweepDefinition, run_name
from metta.sweeps.progress import shown_cost
from metta.sweeps.ranges import Range
from metta.sweeps.space import shown_value
from metta.sweeps.suggestions import fewest_trials, importances
from metta.sweeps.trials import Event, Trial, Trials, best_of, pareto_front

__all__ = ["draw_seeds", "draw_sweep"]

_BLUE, _ORANGE, _GREY = "#2563eb", "#d97706", "#9ca3af"
_MOST_CURVES = 40
_STEPS, _RETURN = "agent steps", "mean return of the last 100 episodes"


def draw_sweep(path: Path, definition: SweepDefinition, events: Sequence[Event]) -> Path:
    """A PNG with four panels: values and scores, importance, best or Pareto front, learning curves."""
    trials = Trials(events)
    if not trials.in_state("complete"):
        raise ConfigError(
            f"no trial of the sweep {definition.name!r} is complete; there is nothing to draw"
        )
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained")
    try:
        _draw_values(panels[0][0], definition, trials)
        _draw_importance(panels[0][1], definition, events)
        if definition.cost == "none":
            _draw_progress(panels[1][0], definition, trials)
        else:
            _draw_front(panels[1][0], definition, trials)
        _draw_curves(panels[1][1], definition, trials)
        figure.suptitle(f"{definition.name}: {len(trials)} trials")
        return atomic_write(path, lambda target: figure.savefig(target, format="png", dpi=110))
    finally:
        pyplot.close(figure)


def draw_seeds(path: Path, definition: SweepDefinition, trial: Trial) -> Path:
    """A PNG of the mean learning curve over seeds with its 95 % interval, and the curve of each seed."""
    pyplot = _pyplot()
    curves = {run.seed: _curve(definition, run.run) for run in trial.runs}
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    try:
        for curve in curves.values():
            if curve:
                axes.plot(*zip(*curve, strict=True), color=_GREY, lw=0.8, alpha=0.8)
        steps, means, lows, highs = mean_curve(list(curves.values()))
        axes.fill_between(steps, lows, highs, color=_BLUE, alpha=0.2, linewidth=0)
        label = f"mean of {len(curves)} seeds, 95 % interval"
        axes.plot(
            steps, means, color=_BLUE, lw=2, marker="o" if len(steps) == 1 else None, label=label
        )
        axes.set(title=definition.name, xlabel=_STEPS, ylabel=_RETURN)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
        return atomic_write(path, lambda target: figure.savefig(target, format="png", dpi=120))
    finally:
        pyplot.close(figure)


def _draw_values(axes: Any, definition: SweepDefinition, trials: Trials) -> None:
    """Parallel coordinates: a line for each trial, coloured by its score."""
    complete = [trial for trial in trials.in_state("complete") if trial.score is not None]
    scores = [trial.score.value for trial in complete if trial.score is not None]
    low, high = min(scores), max(scores)
    shade = _colours()
    best = best_of(trials)
    for trial, score in sorted(zip(complete, scores, strict=True), key=lambda pair: pair[1]):
        share = (score - low) / (high - low) if high > low else 1.0
        heights = [_height(one, trial.values[one.path]) for one in definition.ranges] + [share]
        is_best = best is not None and trial.number == best.number
        axes.plot(
            heights, color=shade(share), lw=2.5 if is_best else 1, alpha=1 if is_best else 0.6
        )
    names = [one.name for one in definition.ranges]
    places = range(len(names) + 1)
    for place in places:
        axes.axvline(place, color=_GREY, lw=0.6)
    ends = [_ends(one) for one in definition.ranges] + [(shown_value(low), shown_value(high))]
    for place, (bottom, top) in zip(places, ends, strict=True):
        axes.text(place, -0.03, bottom, ha="center", va="top", fontsize="x-small")
        axes.text(place, 1.03, top, ha="center", va="bottom", fontsize="x-small")
    axes.set_xticks(list(places), [*names, definition.objective], fontsize="small")
    axes.tick_params(axis="x", pad=14)
    axes.set_yticks([])
    axes.set_ylim(-0.1, 1.12)
    axes.set_title("values and scores (yellow is best)")


def _draw_importance(axes: Any, definition: SweepDefinition, events: Sequence[Event]) -> None:
    axes.set_title("how much of the score each setting explains (PED-ANOVA)")
    shares, why_none = _importances(definition, events)
    if not shares:
        axes.text(0.5, 0.5, why_none, ha="center", va="center")
        axes.set_axis_off()
        return
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh(names, [shares[name] for name in names], color=_BLUE)
    axes.set_xlabel("share")


def _importances(
    definition: SweepDefinition, events: Sequence[Event]
) -> tuple[dict[str, float], str]:
    """Shares of the score's variation, and why there are none."""
    found, needed = len(Trials(events).in_state("complete")), fewest_trials(definition)
    if found < needed:
        return {}, f"too few trials are complete: {found}, and {needed} are needed"
    try:
        return importances(definition, events), "scores do not differ"
    except MissingExtraError as error:  # a grid needs no Optuna
        return {}, str(error).replace("; ", ";\n")


def _draw_progress(axes: Any, definition: SweepDefinition, trials: Trials) -> None:
    """Scores in the order of trials, and the best so far."""
    best, numbers, so_far = -math.inf, [], []
    for trial in trials.in_state("complete"):
        if trial.score is None:
            continue
        one = trial.score
        bars = [[one.value - one.low], [one.high - one.value]]
        axes.errorbar(trial.number, one.value, yerr=bars, fmt="o", color=_BLUE, ms=4, lw=0.8)
        best = max(best, one.value)
        numbers.append(trial.number)
        so_far.append(best)
    axes.step(numbers, so_far, where="post", color=_ORANGE, label="best so far")
    for trial in trials.in_state("pruned"):
        axes.axvline(trial.number, color=_GREY, lw=0.6, ls=":")
    axes.set(title="scores of trials (dotted: pruned)", xlabel="trial", ylabel=definition.objective)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")


def _draw_front(axes: Any, definition: SweepDefinition, trials: Trials) -> None:
    """Score against cost, and the trials that no other one beats in both."""
    for trial in trials.in_state("complete"):
        if trial.score is not None:
            axes.plot(trial.cost, trial.score.value, "o", color=_GREY, ms=4)
    front = [trial for trial in pareto_front(trials) if trial.score is not None]
    costs = [trial.cost for trial in front]
    scores = [trial.score.value for trial in front if trial.score is not None]
    axes.step(costs, scores, where="post", color=_ORANGE, marker="o", ms=5, label="Pareto front")
    for trial, cost, score in zip(front, costs, scores, strict=True):
        note = f"{trial.number}: {shown_cost(definition, trial.cost)}"
        axes.annotate(
            note, (cost, score), fontsize="x-small", xytext=(4, 4), textcoords="offset points"
        )
    axes.set(
        title="score against cost", xlabel=f"cost ({definition.cost})", ylabel=definition.objective
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")


def _draw_curves(axes: Any, definition: SweepDefinition, trials: Trials) -> None:
    """Learning curves of the first run of each trial, the newest ones; the best is orange."""
    best = best_of(trials)
    shown = list(trials.values())[-_MOST_CURVES:]
    if best is not None and best not in shown:
        shown.append(best)
    for trial in sorted(shown, key=lambda trial: best is not None and trial.number == best.number):
        curve = _curve(definition, run_name(definition, trial.number, 0))
        is_best = best is not None and trial.number == best.number
        look = {"color": _ORANGE, "lw": 2} if is_best else {"color": _BLUE, "lw": 0.8, "alpha": 0.5}
        look |= {"marker": "o", "ms": 3} if len(curve) == 1 else {}
        label = f"best: trial {trial.number}" if is_best else None
        axes.plot([step for step, _ in curve], [reward for _, reward in curve], label=label, **look)
    axes.set(title="learning curves (first seed)", xlabel=_STEPS, ylabel=_RETURN)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")


def _curve(definition: SweepDefinition, run: str) -> Curve:
    return reward_curve(Path(definition.runs) / run / "events.jsonl")


def _height(one: Range, value: Any) -> float:
    """Where a value lies between the ends of its range, from 0 to 1."""
    if one.kind == "choice":
        return one.choices.index(value) / max(1, len(one.choices) - 1)
    low, high = one.low, one.high
    if one.is_log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _ends(one: Range) -> tuple[str, str]:
    if one.kind == "choice":
        return shown_value(one.choices[0]), shown_value(one.choices[-1])
    return shown_value(one.low), shown_value(one.high)


def _colours() -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"]


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing a sweep") from None
    return pyplot
