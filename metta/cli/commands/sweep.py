"""`metta sweep`: tries values of settings, and finds the best ones."""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.arguments import ARGUMENTS_HELP
from metta.cli.options import add_out, written_file
from metta.cli.sweeping import (
    add_sweep_options,
    begun,
    check_runs,
    defined,
    driven,
    more_trials,
    opened,
    resume_command,
)
from metta.cli.tables import say
from metta.errors import ConfigError, SweepError

if TYPE_CHECKING:
    from metta.sweeps.definition import SweepDefinition
    from metta.sweeps.ledger import SweepLedger

__all__ = ["configure", "run"]

_ACTIONS = ("resume", "status", "best", "plot", "remove")
_OTHER_WORDS = {
    "continue": "resume",
    "delete": "remove",
    "list": "status",
    "ls": "status",
    "rm": "remove",
    "show": "status",
    "stats": "status",
}
"""What other programs call these actions."""
_DEFAULTS = {"trials": 40, "seeds": 1, "sampler": "tpe", "pruner": "none", "objective": "score"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains with other values of some settings in each trial, and finds those with the highest score. "
        "metta sweep resume|status|best|plot|remove NAME carries a sweep on, shows what came of it, or "
        "removes it; "
        "metta sweep status lists the sweeps."
    )
    parser.epilog = (
        "metta sweep cartpole lr=1e-5..1e-2:log n_epochs=3..10 minibatch_size=64,128,256 --trials 40. "
        "A range is LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP or a list A,B,C."
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PRESET|FILE|NAME=RANGE|NAME=VALUE",
        help=f"{ARGUMENTS_HELP}; one with a range or list is varied",
    )
    parser.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="how many to try (default: 40); with resume the new total, above what has begun",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="runs of each trial, with seeds that follow each other (default: 1)",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="what chooses values: tpe learns from earlier trials; random; grid (default: tpe)",
    )
    parser.add_argument(
        "--pruner",
        metavar="NAME",
        help="ends trials early that are worse than others: none, median or asha (default: none)",
    )
    parser.add_argument(
        "--objective",
        metavar="NAME",
        help="what is maximised: score, of fresh episodes at the end, or reward, of the last 100 episodes "
        "of training (default: score)",
    )
    parser.add_argument(
        "--cost",
        metavar="NAME",
        help="what is minimised beside it: none, steps, wall or cpu seconds (default: none)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the values that are tried (default: 0)"
    )
    add_sweep_options(parser)
    add_out(parser, "the picture that `plot` draws (default: sweep.png in the sweep's folder)")
    parser.add_argument("--json", action="store_true", help="status and best as JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Begin a sweep, or do what the first word says with one."""
    words = list(options.words)
    if not words or words[0] not in _ACTIONS:
        _check_not_meant(words)
        return _begin(words, options)
    action, *names = words
    if action == "resume" and any("=" in word for word in names[1:]):
        raise ConfigError(
            "settings and ranges of a sweep cannot change once it has begun; begin another one, or leave "
            f"{' '.join(names[1:])} out"
        )
    if len(names) > 1 or (not names and action != "status"):
        raise ConfigError(
            f"name one sweep: metta sweep {action} NAME; `metta sweep status` lists them"
        )
    with opened(options, must_exist=True) as ledger:
        if not names:
            return _list(ledger, options)
        definition = ledger.definition(names[0])
        if action == "resume":
            return _resume(ledger, definition, options)
        _check_nothing_chosen(options, action)
        if action == "remove":
            return _remove(ledger, definition)
        show = {"plot": _plot, "status": _status, "best": _best}[action]
        return show(ledger, definition, options)


def _check_not_meant(words: list[str]) -> None:
    """Refuse what is meant as an action, e.g. ``metta sweep list`` or ``metta sweep statsu first``."""
    if not words or len(words) > 2 or any(sign in word for word in words for sign in "=:./"):
        return
    meant = _OTHER_WORDS.get(words[0])
    if meant is None and len(words) == 2:
        import difflib  # seldom needed, and slow to import

        meant = next(iter(difflib.get_close_matches(words[0], _ACTIONS, n=1)), None)
    if meant is not None:
        name = words[1] if len(words) == 2 else "" if meant == "status" else "NAME"
        raise ConfigError(
            f"{words[0]!r} is no action; did you mean: {f'metta sweep {meant} {name}'.rstrip()}?"
        )


def _begin(words: list[str], options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in (*_DEFAULTS, "cost", "seed")}
    choices = {**_DEFAULTS, **{name: value for name, value in chosen.items() if value is not None}}
    definition = defined(words, options, "sweep", **choices)
    if not definition.ranges:
        raise ConfigError(
            "nothing varies: give a setting a range, e.g. lr=1e-5..1e-2:log or minibatch_size=64,128,256. "
            "One configuration over several seeds: metta seeds 5 ..."
        )
    from metta.sweeps.suggestions import grid_size, suggester_of

    if definition.sampler == "grid":
        size = grid_size(definition.ranges)
        definition = definition.with_trials(min(size, options.trials or size))
    suggester_of(definition)  # a missing extra is told now
    with opened(options) as ledger:
        begun(ledger, definition)
        driven(ledger, definition, options)
        return _end(ledger, definition, options)


def _resume(
    ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace
) -> int:
    if not definition.ranges:
        raise ConfigError(
            f"{definition.name!r} is one configuration over several seeds; continue it with: metta seeds "
            f"resume {definition.name}"
        )
    _check_nothing_chosen(options, "resume", besides=("trials",))
    check_runs(definition, options)
    if options.trials is not None:
        with _held(definition):
            definition = _with_trials(ledger, definition, options.trials)
    driven(ledger, definition, options)
    return _end(ledger, definition, options)


def _with_trials(
    ledger: "SweepLedger", definition: "SweepDefinition", trials: int
) -> "SweepDefinition":
    """The sweep with a new total, which is above the number of trials that have begun."""
    from metta.sweeps.definition import check_choices
    from metta.sweeps.suggestions import largest_number
    from metta.sweeps.trials import Trials

    check_choices(definition.with_trials(trials))
    num_begun, largest = len(Trials(ledger.events(definition.name))), largest_number(definition)
    if num_begun >= largest:
        raise ConfigError(
            f"--trials {trials}: all {largest} combinations of the grid {definition.name!r} were begun; "
            "leave --trials out, or begin another sweep"
        )
    if trials <= num_begun:
        raise ConfigError(
            f"--trials {trials} is the new total, and {num_begun} trials of {definition.name!r} were begun "
            f"already; give --trials {num_begun + 1} or more, or leave it out to end those that are open"
        )
    trials = min(trials, largest)
    return ledger.set_trials(definition, trials)


def _check_nothing_chosen(
    options: argparse.Namespace, action: str, besides: tuple[str, ...] = ()
) -> None:
    names = {*_DEFAULTS, "cost", "seed", "name"} - set(besides)
    for name in sorted(names):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--{name} is chosen when a sweep begins; leave it out of metta sweep {action}"
            )


def _end(ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace) -> int:
    """Say what came of it; `SweepError` if that is nothing."""
    from metta.cli.sweep_tables import best_lines
    from metta.sweeps.trials import Trials

    events = ledger.events(definition.name)
    text = "\n".join(best_lines(definition, events))
    trials = Trials(events)
    if not trials.in_state("complete"):
        raise SweepError(f"{text}\n{more_trials(definition, options, len(trials))}")
    say(text)
    return 0


def _list(ledger: "SweepLedger", options: argparse.Namespace) -> int:
    from metta.cli.sweep_tables import list_json, list_lines
    from metta.sweeps.lock import is_held

    definitions = [ledger.definition(name) for name in ledger.names()]
    sweeps = [(one, ledger.events(one.name), is_held(one)) for one in definitions]
    if options.json:
        say(list_json(sweeps))
    else:
        say("\n".join(list_lines(sweeps)) if sweeps else f"there are no sweeps in {ledger.url}")
    return 0


def _status(
    ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace
) -> int:
    from metta.cli.sweep_tables import is_done, shown_json, status_lines
    from metta.sweeps.lock import is_held
    from metta.sweeps.trials import Trials

    is_running, events = is_held(definition), ledger.events(definition.name)
    if options.json:
        say(shown_json(definition, events, "status", is_running))
    else:
        say("\n".join(status_lines(definition, events, is_running)))
        if is_running is False and not is_done(definition, Trials(events)):
            say(f"nobody carries it on; continue with: {resume_command(definition, options)}")
    return 0


def _best(ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace) -> int:
    from metta.cli.sweep_tables import best_lines, shown_json

    events = ledger.events(definition.name)
    if options.json:
        say(shown_json(definition, events, "best"))
    else:
        say("\n".join(best_lines(definition, events)))
    return 0


def _held(definition: "SweepDefinition") -> contextlib.AbstractContextManager[None]:
    """The lock of a sweep; one without a folder here needs none."""
    from metta.sweeps.lock import hold_sweep

    folder = Path(definition.runs) / definition.name
    return hold_sweep(definition) if folder.is_dir() else contextlib.nullcontext()


def _remove(ledger: "SweepLedger", definition: "SweepDefinition") -> int:
    """Remove a sweep from the database, unless a process carries it on."""
    folder = Path(definition.runs) / definition.name
    with _held(definition):
        ledger.remove(definition)
    say(f"removed {definition.name!r} from {ledger.url}")
    if folder.is_dir():
        say(f"its runs stay in {folder}; remove that folder if you do not need them")
    return 0


def _plot(ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace) -> int:
    from metta.sweeps.plots import draw_sweep

    default = str(Path(options.runs) / definition.name / "sweep.png")
    file = written_file(options.out or default)
    if file.suffix.lower() != ".png":
        raise ConfigError(f"--output {str(file)!r}: the picture is a PNG; give a file.png")
    draw_sweep(file, definition, ledger.events(definition.name))
    say(f"drew the sweep to {file}")
    return 0
