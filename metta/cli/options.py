"""Options that several commands have."""

import argparse
import os
from pathlib import Path

from metta.cli.arguments import ARGUMENTS_HELP

__all__ = [
    "URL_VARIABLE",
    "add_allow_inexact",
    "add_checkpoint_dir",
    "add_database",
    "add_output",
    "add_words",
    "database_of",
]

URL_VARIABLE = "METTA_STATS_URL"
"""Environment variable with the database's address."""
_FILE = "stats.db"


def add_words(parser: argparse.ArgumentParser) -> None:
    """The arguments that describe a run: see `resolve_arguments`."""
    parser.add_argument("words", nargs="*", metavar="PRESET|FILE|NAME=VALUE", help=ARGUMENTS_HELP)


def add_output(parser: argparse.ArgumentParser, text: str = "where runs are") -> None:
    """The folder of runs."""
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help=f"{text} (default: %(default)s)"
    )


def add_checkpoint_dir(parser: argparse.ArgumentParser) -> None:
    """The folder that a run was given for its checkpoints."""
    parser.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="where the run has its checkpoints, if that is outside of its folder",
    )


def add_allow_inexact(parser: argparse.ArgumentParser) -> None:
    """The option of commands that may continue a run."""
    parser.add_argument(
        "--allow-inexact",
        action="store_true",
        help="continue even if libraries, threads or device differ from those that the run was saved with, "
        "and its numbers with them",
    )


def add_database(parser: argparse.ArgumentParser) -> None:
    """The options of commands on the database."""
    parser.add_argument(
        "--database",
        metavar="URL",
        help="path of a SQLite file (.db, .sqlite), postgresql://..., or env:NAME for a variable that "
        f"has either (default: ${URL_VARIABLE}, else {_FILE} below --output)",
    )
    add_output(parser)


def database_of(options: argparse.Namespace) -> str:
    """The address that was given, else that of the environment, else a file in the folder of runs."""
    found = options.database or os.environ.get(URL_VARIABLE)
    file = Path(options.output) / _FILE
    return str(found or (file.absolute() if "=" in options.output else file))
