"""What a sweep is: its settings, its ranges, and how trials are chosen and judged. Never changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from metta.errors import ConfigError
from metta.sweeps.pruning import PRUNERS, RUNGS
from metta.sweeps.ranges import Range

__all__ = [
    "COSTS",
    "MAX_TRIALS",
    "OBJECTIVES",
    "SAMPLERS",
    "SweepDefinition",
    "check_choices",
    "run_name",
]

SAMPLERS = ("tpe", "random", "grid")
OBJECTIVES = ("score", "reward")
COSTS = ("none", "steps", "wall", "cpu")
MAX_TRIALS, MAX_SEEDS = 100_000, 1_000


@dataclass(frozen=True)
class SweepDefinition:
    """A sweep, or one configuration over several seeds: that is a sweep without ranges."""

    name: str
    words: tuple[str, ...]
    """Arguments of the command that set one value each; `metta train` takes them too."""
    settings: Mapping[str, Any]
    """Path -> value of everything that was chosen, without what the ranges vary."""
    provenance: Mapping[str, Any]
    """Where each setting comes from."""
    ranges: tuple[Range, ...]
    runs: str
    """The folder of runs, in which the sweep has its own; absolute."""
    total_timesteps: int
    first_seed: int
    trials: int = 40
    seeds: int = 1
    sampler: str = "tpe"
    pruner: str = "none"
    objective: str = "score"
    cost: str = "none"
    seed: int = 0
    """Of the suggestions."""

    @property
    def rungs(self) -> tuple[float, ...]:
        """Shares of a run's steps at which trials are judged."""
        return RUNGS[self.pruner]

    @property
    def group(self) -> str:
        """Of the sweep's jobs."""
        return f"sweep/{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **vars(self),
            "words": list(self.words),
            "ranges": [one.to_dict() for one in self.ranges],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SweepDefinition":
        """The definition of which `to_dict` made this."""
        known = {field.name for field in fields(cls)}
        if unknown := data.keys() - known:
            raise ConfigError(
                f"the sweep {data.get('name')!r} was begun by another version of metta, which also had "
                f"{', '.join(sorted(unknown))}; continue it there"
            )
        ranges = tuple(Range.from_dict(one) for one in data["ranges"])
        return cls(**{**data, "words": tuple(data["words"]), "ranges": ranges})

    def with_trials(self, trials: int) -> "SweepDefinition":
        """The same with another number of trials."""
        return replace(self, trials=trials)


def run_name(definition: SweepDefinition, trial: int, place: int) -> str:
    """Name of a run below the folder of runs; `place` counts the seeds of a trial from 0."""
    return f"{definition.name}/t{trial:03d}-s{definition.first_seed + place}"


def check_choices(definition: SweepDefinition) -> SweepDefinition:
    """Refuse numbers and choices that fit no sweep, or not each other."""
    _check_one_of("--sampler", definition.sampler, SAMPLERS)
    _check_one_of("--pruner", definition.pruner, PRUNERS)
    _check_one_of("--objective", definition.objective, OBJECTIVES)
    _check_one_of("--cost", definition.cost, COSTS)
    for option, number, most in (
        ("--trials", definition.trials, MAX_TRIALS),
        ("--seeds", definition.seeds, MAX_SEEDS),
    ):
        if not 1 <= number <= most:
            raise ConfigError(f"{option} {number}: give a whole number from 1 to {most:,}")
    if not 0 <= definition.seed < 2**63:
        raise ConfigError(f"--seed {definition.seed}: give a whole number from 0")
    varied = {one.path for one in definition.ranges}
    if definition.pruner != "none" and "trainer.total_timesteps" in varied:
        raise ConfigError(
            f"--pruner {definition.pruner} compares runs at shares of their steps, so total_timesteps "
            "cannot vary; give it one value, or use --pruner none"
        )
    return definition


def _check_one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{option} {value!r}: choose one of {', '.join(known)}")
