"""`metta seeds`: one configuration over several seeds, side by side."""

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.cli.arguments import ARGUMENTS_HELP
from metta.cli.sweeping import (
    add_sweep_options,
    begun,
    check_runs,
    defined,
    driven,
    more_trials,
    opened,
)
from metta.cli.tables import say, table
from metta.errors import ConfigError, MettaError, SweepError
from metta.loggers.number_text import shown_number

if TYPE_CHECKING:
    from metta.sim.statistics import Estimate
    from metta.sweeps.definition import SweepDefinition
    from metta.sweeps.ledger import SweepLedger
    from metta.sweeps.trials import Trial

__all__ = ["configure", "run"]

_PICTURE = "seeds.png"
_FEWEST = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains one configuration with N seeds, as many at a time as there are cores, and shows their "
        "scores in one table, with mean and interquartile mean and their 95 % bootstrap intervals, and "
        "their mean learning curve in one picture. metta seeds resume NAME continues."
    )
    parser.epilog = "metta seeds 5 cartpole total_timesteps=100_000; the first seed is seed=1"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="N|PRESET|FILE|NAME=VALUE",
        help=f"number of seeds, then {ARGUMENTS_HELP}",
    )
    add_sweep_options(parser)
    parser.add_argument("--json", action="store_true", help="the table as JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Train with all seeds, or carry that on."""
    if not options.words:
        raise ConfigError("how many seeds? metta seeds 5 cartpole, or: metta seeds resume NAME")
    first, *words = options.words
    if first == "resume":
        return _resume(words, options)
    if not first.isdigit() or int(first) < _FEWEST:
        raise ConfigError(
            f"metta seeds {first}: first comes the number of seeds, {_FEWEST} or more: "
            "metta seeds 5 cartpole"
        )
    choices: dict[str, Any] = {"trials": 1, "seeds": int(first), "sampler": "grid"}
    definition = defined(words, options, "seeds", **choices)
    if definition.ranges:
        raise ConfigError(
            f"{definition.ranges[0].describe()} has several values, and `metta seeds` trains one "
            "configuration; try values with: metta sweep"
        )
    with opened(options) as ledger:
        begun(ledger, definition)
        return _carry_on(ledger, definition, options)


def _resume(words: list[str], options: argparse.Namespace) -> int:
    if len(words) != 1 or options.name is not None:
        raise ConfigError("name what to continue: metta seeds resume NAME")
    with opened(options, must_exist=True) as ledger:
        definition = ledger.definition(words[0])
        if definition.ranges:
            raise ConfigError(
                f"{words[0]!r} is a sweep; continue it with: metta sweep resume {words[0]}"
            )
        check_runs(definition, options)
        return _carry_on(ledger, definition, options)


def _carry_on(
    ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace
) -> int:
    driven(ledger, definition, options)
    from metta.sweeps.trials import Trials

    trial = Trials(ledger.events(definition.name))[1]
    if trial.state != "complete":
        raise SweepError(
            f"{definition.name!r} has failed: {trial.reason}\nwhat its runs said is in "
            f"{definition.runs}/{definition.name}\n{more_trials(definition, options, 1)}"
        )
    means = _estimates(trial)
    if options.json:
        say(_json(definition, trial, means))
    else:
        say("\n".join(_lines(definition, trial, means, options)))
        _draw(definition, trial)
    return 0


def _estimates(trial: "Trial") -> dict[str, "Estimate"]:
    """Mean and interquartile mean over seeds, with their intervals."""
    import numpy as np

    from metta.sim.statistics import estimate, mean_of_means, pooled_interquartile_mean

    scores = [np.array([run.score for run in trial.runs])]
    return {
        "mean": estimate(mean_of_means, scores),
        "IQM": estimate(pooled_interquartile_mean, scores),
    }


def _lines(
    definition: "SweepDefinition",
    trial: "Trial",
    means: dict[str, "Estimate"],
    options: argparse.Namespace,
) -> Iterator[str]:
    interval = "95 % interval"
    rows = [["seed", "score", f"{interval} over episodes", "steps", "seconds", "run"]]
    for one in trial.runs:
        ends = f"{shown_number(one.low)} .. {shown_number(one.high)}"
        steps, seconds = f"{one.agent_step:,}", f"{one.train_seconds:,.1f}"
        rows.append([str(one.seed), shown_number(one.score), ends, steps, seconds, one.run])
    yield table(rows)
    yield ""
    rows = [["over seeds", "score", interval]]
    for name, found in means.items():
        ends = f"{shown_number(found.low)} .. {shown_number(found.high)}"
        rows.append([name, shown_number(found.value), ends])
    yield table(rows)
    place = [] if options.runs == "runs" else ["--runs", options.runs]
    compared = shlex.join(["metta", "compare", definition.name, "OTHER", *place])
    yield f"compare with other settings: {compared}"


def _json(definition: "SweepDefinition", trial: "Trial", means: dict[str, "Estimate"]) -> str:
    return json.dumps(
        {
            "name": definition.name,
            "seeds": [vars(one) for one in trial.runs],
            **{name.lower(): found.to_dict() for name, found in means.items()},
        }
    )


def _draw(definition: "SweepDefinition", trial: "Trial") -> None:
    from metta.sweeps.plots import draw_seeds

    try:
        file = draw_seeds(Path(definition.runs) / definition.name / _PICTURE, definition, trial)
        say(f"drew the mean learning curve to {file}")
    except MettaError as error:  # a missing extra
        say(f"no learning curve: {error}")
