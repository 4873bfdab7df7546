"""`metta doctor`: what is wrong with an environment and its settings, why, and what to change."""

import argparse
from typing import TYPE_CHECKING

from metta.cli.arguments import resolve_arguments
from metta.cli.options import add_words
from metta.cli.tables import say
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from rich.table import Table

    from metta.doctor.report import Report

__all__ = ["configure", "run"]

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "fault": "red", "recipe": "magenta"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Plays an environment at random, repeats episodes, compares the settings with what was seen, and "
        "trains copies of the network on small tasks with known answers. Each problem is shown with its "
        "cause and its cure. Nothing is written."
    )
    parser.epilog = (
        "Exit code 1 if there is a fault, else 0. For your own network and losses: "
        "metta.check_env(env, policy, losses)."
    )
    add_words(parser)
    parser.add_argument(
        "--play-steps", type=int, metavar="N", help="random steps; fewer for slow environments"
    )
    parser.add_argument("--no-probes", action="store_true", help="train no small tasks")
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(options: argparse.Namespace) -> int:
    """Examine, and print the report."""
    config = resolve_arguments(options.words).config
    import json  # these and torch load here, not for --help

    from metta.curriculum import Curriculum
    from metta.doctor.doctor import check_env

    chosen = {} if options.play_steps is None else {"play_steps": options.play_steps}
    task = Curriculum(config.trainer.curriculum).task
    report = check_env(task, config=config, probes=not options.no_probes, **chosen)
    if options.json:
        say(json.dumps(report.to_dict()))
    else:
        _show(report)
    return 1 if report.faults else 0


def _show(report: "Report") -> None:
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    console.print(_table(report))
    colour = "red" if report.faults else "yellow" if report.problems else "green"
    console.print(printable(report.verdict()), style=f"bold {colour}", markup=False)


def _table(report: "Report") -> "Table":
    """Findings, then lines of the recipe; what they say may come from environments, so it is not markup."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(overflow="fold")
    for finding in report.findings:
        text = Text(printable(finding.found))
        for name in ("cause", "cure"):
            said = getattr(finding, name)
            if said:
                text.append(f"\n{name}: ", style="bold").append(printable(said))
        kind = Text(finding.severity, style=_COLOURS[finding.severity])
        grid.add_row(kind, Text(printable(finding.name)), text)
    for line in report.recipe:
        grid.add_row(Text("recipe", style=_COLOURS["recipe"]), Text(), Text(printable(line)))
    return grid
