"""What is tried next: Optuna's samplers, or a grid, as functions of the sweep's log.

The study lives in memory only. The sampler of trial k is seeded by the sweep's seed and k, so the same
events in the same order give the same suggestions, also in another process.
"""

import contextlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from metta.errors import ConfigError, MissingExtraError
from metta.seeding import derive_seed, numpy_generator
from metta.sweeps.definition import MAX_TRIALS, SweepDefinition
from metta.sweeps.ranges import Range, num_values, values_of
from metta.sweeps.trials import Event, Trials

if TYPE_CHECKING:
    import optuna

__all__ = [
    "OptunaSuggester",
    "Suggester",
    "fewest_trials",
    "grid_size",
    "importances",
    "largest_number",
    "replayed",
    "suggester_of",
]

_MOST_VALUES = 10_000
"""Of one range in a grid."""
_NUM_RANDOM = 10
"""Trials that TPE draws at random before it learns from them."""


class Suggester(Protocol):
    """Suggests values; everything that it learns from comes as events, its own asks included."""

    def ask(self, trial: int) -> dict[str, Any]:
        """Values of the next trial; an event `ask` with them follows, or nothing."""
        ...

    def follow(self, event: Event) -> None:
        """Learn of an event."""
        ...


class Grid:
    """All combinations, each once, in an order that the seed decides; without ranges there is one."""

    def __init__(self, ranges: Sequence[Range], seed: int) -> None:
        self._ranges = ranges
        self._order = numpy_generator(seed, "grid").permutation(grid_size(ranges))

    def ask(self, trial: int) -> dict[str, Any]:
        """The combination of this place."""
        place = int(self._order[trial - 1])
        values = {}
        for one in reversed(self._ranges):
            own = values_of(one, _MOST_VALUES)
            place, digit = divmod(place, len(own))
            values[one.path] = own[digit]
        return {one.path: values[one.path] for one in self._ranges}

    def follow(self, event: Event) -> None:
        """A grid learns nothing."""


def grid_size(ranges: Sequence[Range]) -> int:
    """How many combinations a grid has; `ConfigError` if a range has no steps, or too many."""
    for one in ranges:
        count = num_values(one)
        if count is None or count > _MOST_VALUES:
            raise ConfigError(
                f"--sampler grid needs a list or steps: {one.describe()} has "
                f"{'no steps' if count is None else f'{count:,} values'}; write {one.name}=A,B,C, "
                f"{one.name}=LOW..HIGH:STEP, or use --sampler tpe"
            )
    size = math.prod(num_values(one) or 1 for one in ranges)
    if size > 10**6:
        raise ConfigError(
            f"--sampler grid: {size:,} combinations are too many; use --sampler random"
        )
    return size


def largest_number(definition: SweepDefinition) -> int:
    """How many trials the sweep can have at most."""
    return grid_size(definition.ranges) if definition.sampler == "grid" else MAX_TRIALS


class OptunaSuggester:
    """A study in memory, with a fresh sampler for each trial."""

    def __init__(self, definition: SweepDefinition, *, given: bool = False) -> None:
        """With `given`, asks of the log are taken as they are, not computed again."""
        with _quiet():
            self._optuna = _import_optuna()
            self._definition, self._given = definition, given
            self._single = definition.cost == "none"
            directions = ["maximize"] if self._single else ["maximize", "minimize"]
            self.study = self._optuna.create_study(directions=directions)
            self._spaces = {one.path: self._distribution(one) for one in definition.ranges}
            self._choices = {
                one.path: {json.dumps(choice): choice for choice in one.choices}
                for one in definition.ranges
                if one.kind == "choice"
            }
        self._asked: optuna.Trial | None = None
        self._open: dict[int, optuna.Trial] = {}

    def ask(self, trial: int) -> dict[str, Any]:
        """Values of the next trial."""
        if self._asked is None:
            with _quiet():
                self.study.sampler = self._sampler(trial)
                self._asked = self.study.ask(self._spaces)
        return {
            path: self._choices[path][value] if path in self._choices else value
            for path, value in self._asked.params.items()
        }

    def follow(self, event: Event) -> None:
        """Tell the study what happened."""
        with _quiet():
            if event.kind == "ask":
                self._begin(event)
            elif event.kind == "report":
                if self._single and event.payload["value"] is not None:
                    rung, value = event.payload["rung"], event.payload["value"]
                    self._open[event.trial].report(value, rung)
            elif event.kind in ("prune", "tell"):
                self._end(event)

    def importances(self) -> dict[str, float]:
        """Path -> share of the score's variation that a setting explains."""
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        with _quiet():
            found: dict[str, float] = self._optuna.importance.get_param_importances(
                self.study,
                evaluator=evaluator,
                target=None if self._single else lambda trial: float(trial.values[0]),
            )
        return found

    def _begin(self, event: Event) -> None:
        if self._given and self._asked is None:
            stored = {
                path: json.dumps(value) if path in self._choices else value
                for path, value in event.payload["values"].items()
            }
            self.study.enqueue_trial(stored)
        self.ask(event.trial)
        assert self._asked is not None
        self._open[event.trial], self._asked = self._asked, None

    def _end(self, event: Event) -> None:
        states = self._optuna.trial.TrialState
        trial = self._open.pop(event.trial)
        if event.kind == "tell" and event.payload["state"] == "complete":
            score, cost = event.payload["score"]["value"], event.payload["cost"]
            self.study.tell(trial, score if self._single else [score, cost])
        elif event.kind == "prune" and self._single:
            self.study.tell(trial, state=states.PRUNED)
        else:  # the sampler for two objectives cannot use what was pruned
            self.study.tell(trial, state=states.FAIL)

    def _sampler(self, trial: int) -> "optuna.samplers.BaseSampler":
        kinds: Any = self._optuna.samplers
        seed = derive_seed(self._definition.seed, "suggestion", index=trial) % 2**32
        if self._definition.sampler == "random":
            chosen: optuna.samplers.BaseSampler = kinds.RandomSampler(seed=seed)
        else:
            more = {"n_startup_trials": _NUM_RANDOM, "multivariate": True, "constant_liar": True}
            chosen = kinds.TPESampler(seed=seed, **more)
        return chosen

    def _distribution(self, one: Range) -> "optuna.distributions.BaseDistribution":
        kinds = self._optuna.distributions
        found: optuna.distributions.BaseDistribution
        if one.kind == "choice":
            found = kinds.CategoricalDistribution([json.dumps(choice) for choice in one.choices])
        elif one.kind == "int":
            low, high, step = int(one.low), int(one.high), int(one.step or 1)
            found = kinds.IntDistribution(low, high, log=one.is_log, step=step)
        else:
            found = kinds.FloatDistribution(one.low, one.high, log=one.is_log, step=one.step)
        return found


def suggester_of(definition: SweepDefinition, *, given: bool = False) -> Suggester:
    """The suggester that a sweep has chosen, which knows of no event yet."""
    if definition.sampler == "grid" or not definition.ranges:
        return Grid(definition.ranges, definition.seed)
    return OptunaSuggester(definition, given=given)


def replayed(definition: SweepDefinition, events: Iterable[Event]) -> tuple[Suggester, str]:
    """A suggester that knows these events, and what is wrong if it would have suggested otherwise."""
    events = list(events)
    suggester = suggester_of(definition)
    for event in events:
        if event.kind == "ask":
            found, stored = suggester.ask(event.trial), dict(event.payload["values"])
            if found != stored:
                return _taken_over(definition, events), (
                    f"trial {event.trial} of the sweep {definition.name!r} had {stored}, and would now "
                    f"have {found}: this Optuna suggests other values than the one that the sweep "
                    "began with; it continues from what was tried"
                )
        suggester.follow(event)
    return suggester, ""


def fewest_trials(definition: SweepDefinition) -> int:
    """How many trials must be complete to tell importances."""
    return max(2, 2 * len(definition.ranges))


def importances(definition: SweepDefinition, events: Iterable[Event]) -> dict[str, float]:
    """Name of a setting -> its share of the score's variation (PED-ANOVA); empty if that is not known."""
    suggester = OptunaSuggester(definition, given=True)
    trials = Trials()
    for event in events:
        suggester.follow(event)
        trials.follow(event)
    if len(trials.in_state("complete")) < fewest_trials(definition) or not definition.ranges:
        return {}
    names = {one.path: one.name for one in definition.ranges}
    shares = suggester.importances().items()
    return {names[path]: float(share) for path, share in shares if math.isfinite(share)}


def _taken_over(definition: SweepDefinition, events: Sequence[Event]) -> Suggester:
    suggester = suggester_of(definition, given=True)
    for event in events:
        suggester.follow(event)
    return suggester


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "sweep", "choosing what is tried next") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep says what happens
    return optuna


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Optuna warns that parts of it are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
