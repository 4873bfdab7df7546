"""`metta compare`: which of several runs, or groups of runs, is better, with confidence intervals."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import add_runs
from metta.cli.policy_names import run_and_epoch
from metta.cli.tables import say, table
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.runs.comparison import Comparison, Evaluation
    from metta.sim.statistics import Estimate

__all__ = ["configure", "read_groups", "run"]

_OF_TRIAL = re.compile(r"t\d+-s\d+")
"""A run of a sweep."""
_EVEN = 0.5
"""The probability that one is better, if both are alike."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Compares the newest evaluations of runs: means and interquartile means with 95 % stratified "
        "bootstrap intervals, and how likely each is better than each other. Several seeds of one set-up "
        "are given as NAME=RUN,RUN,..., or by the name of `metta seeds`: intervals then show how another "
        "seed would do."
    )
    parser.epilog = "metta compare adam=adam-1,adam-2,adam-3 sgd=sgd-1,sgd-2,sgd-3"
    parser.add_argument(
        "groups",
        nargs="+",
        metavar="RUN|SEEDS|NAME=RUN,...",
        help="two or more runs, names of `metta seeds`, or groups of runs, by their newest evaluation; "
        "RUN:best and RUN:v120 choose another",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap")
    add_runs(parser)
    parser.add_argument("--json", action="store_true", help="everything as JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    names = read_groups(options.groups, Path(options.runs))
    from metta.loggers.events.plain_json import to_json
    from metta.runs.comparison import compare_groups

    output = Path(options.runs)
    groups = {
        name: [_evaluation(member, output) for member in members] for name, members in names.items()
    }
    found = compare_groups(groups, seed=options.seed)
    say(to_json(_plain(found, groups)) if options.json else "\n".join(_lines(found, groups)))
    return 0


def read_groups(words: Sequence[str], output: Path) -> dict[str, list[str]]:
    """Name of each group -> its runs; a run is a group of its own name, and so is a folder of runs."""
    groups: dict[str, list[str]] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        members = [member for member in rest.split(",") if member] if equals else []
        members = members if equals else _runs_of_seeds(word, output) or [word]
        if not name or not members:
            raise ConfigError(f"{word!r} names no runs; write RUN, or NAME=RUN,RUN,...")
        if name in groups:
            raise ConfigError(f"{name!r} is given twice; give each group its own name")
        if len(set(members)) < len(members):
            raise ConfigError(f"{word!r} has the same run twice; it would count as two")
        groups[name] = members
    if len(groups) < 2:
        raise ConfigError("there is nothing to compare; give two or more runs or groups of runs")
    return groups


def _runs_of_seeds(name: str, output: Path) -> list[str]:
    """The runs in a folder that is no run itself, as `metta seeds` makes it; none if it has none."""
    for folder in (Path(name), output / name):
        if (folder / "config.yaml").is_file():
            return []
        found = sorted(file.parent.name for file in folder.glob("*/config.yaml"))
        if len({run.partition("-s")[0] for run in found if _OF_TRIAL.fullmatch(run)}) > 1:
            raise ConfigError(
                f"{name!r} is a sweep, and its trials differ; name those that you compare, e.g. "
                f"{name}/{found[0]}"
            )
        if found:
            return [f"{name}/{run}" for run in found]
    return []


def _evaluation(name: str, output: Path) -> "Evaluation":
    from metta.runs.comparison import last_evaluation
    from metta.store.run_directory import RunDirectory

    folder, epoch = run_and_epoch(name, output)
    found = last_evaluation(RunDirectory(folder).events_file, epoch)
    if found is None or not found.scores:
        of_epoch = "" if epoch is None else f" of epoch {epoch}"
        raise ConfigError(
            f"the run {name!r} has no evaluation{of_epoch} in its event log; train it with eval_episodes "
            "above 0"
        )
    return found


def _lines(found: "Comparison", groups: Mapping[str, Sequence["Evaluation"]]) -> Iterator[str]:
    interval = "95 % interval"
    drawn = "scores" if found.unit == "runs" else found.unit
    rows: list[tuple[str, ...]] = [
        ("simulation", "group", "runs", drawn, "mean", interval, "IQM", interval)
    ]
    for simulation, by_group in found.estimates.items():
        for group, one in by_group.items():
            counts = str(len(groups[group])), str(one.count)
            numbers = [
                text
                for part in (found.means[simulation][group], one)
                for text in (shown_number(part.value), _interval(part))
            ]
            rows.append((simulation, group, *counts, *numbers))
    yield table(rows)
    yield ""
    pairs = [("better", "than", "probability", "95 % interval")]
    pairs += [
        (ours, others, shown_number(one.value), _interval(one))
        for (ours, others), one in found.improvements.items()
    ]
    yield table(pairs)
    yield ""
    if found.left_out:
        yield f"not in all runs, and left out: {printable(', '.join(found.left_out))}"
    if found.unit == "episodes":
        yield "intervals are over episodes: they hold for these policies, not for other seeds"
        yield "more episodes of each policy: metta eval RUN RUN --episodes 200"
    if found.missing:
        yield f"not enough data: {printable(found.missing)}"
    else:
        yield f"best by the lower bound of its interval: {printable(found.best)}{_doubt(found)}"


def _doubt(found: "Comparison") -> str:
    """Names the groups that the best may be better than only by chance."""
    pairs = found.improvements.items()
    alike = [other for (ours, other), one in pairs if ours == found.best and one.low <= _EVEN]
    return f", but that may be chance beside {printable(', '.join(alike))}" if alike else ""


def _interval(one: "Estimate") -> str:
    return f"{shown_number(one.low)} .. {shown_number(one.high)}"


def _plain(found: "Comparison", groups: Mapping[str, Sequence["Evaluation"]]) -> dict[str, object]:
    return {
        "unit": found.unit,
        "runs": {name: len(members) for name, members in groups.items()},
        "simulations": found.simulations,
        "left_out": found.left_out,
        "interquartile_means": {
            simulation: {group: one.to_dict() for group, one in by_group.items()}
            for simulation, by_group in found.estimates.items()
        },
        "means": {
            simulation: {group: one.to_dict() for group, one in by_group.items()}
            for simulation, by_group in found.means.items()
        },
        "improvements": [
            {"better": ours, "than": others, **one.to_dict()}
            for (ours, others), one in found.improvements.items()
        ],
        "best": found.best or None,
        "missing": found.missing or None,
    }
