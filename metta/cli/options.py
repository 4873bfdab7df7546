"""Options that several commands have."""

import argparse
import os
from pathlib import Path
from typing import Any

from metta.cli.arguments import ARGUMENTS_HELP
from metta.errors import ConfigError

__all__ = [
    "URL_VARIABLE",
    "add_allow_inexact",
    "add_checkpoint_dir",
    "add_database",
    "add_out",
    "add_runs",
    "add_terminal_play",
    "add_words",
    "database_of",
    "written_file",
]

URL_VARIABLE = "METTA_STATS_URL"
"""Environment variable with the database's address."""
_FILE = "stats.db"
_OUT = ("--output", "--out", "-o")
"""The spellings of what a command writes."""


def add_words(parser: argparse.ArgumentParser) -> None:
    """The arguments that describe a run: see `resolve_arguments`."""
    parser.add_argument("words", nargs="*", metavar="PRESET|FILE|NAME=VALUE", help=ARGUMENTS_HELP)


def add_terminal_play(parser: argparse.ArgumentParser) -> None:
    """How an episode is shown in the terminal."""
    parser.add_argument(
        "--speed",
        type=float,
        default=8.0,
        metavar="N",
        help="steps per second in the terminal (default: %(default)g)",
    )
    parser.add_argument("--no-color", action="store_true", help="signs only")


def add_runs(parser: argparse.ArgumentParser, *, writes: str = "nothing") -> None:
    """The folder of runs, --runs. `writes` is what the command makes: ``run``, ``file`` or ``nothing``.

    --output, --out and -o name what a command writes. Where that is a run they are the same folder, and a
    command that writes nothing still takes --output, as it was called before.
    """
    names, text = ["--runs"], "where runs are"
    if writes == "run":
        names, text = [*names, *_OUT], "where runs are saved"
    parser.add_argument(
        *names, dest="runs", default="runs", metavar="DIR", help=f"{text} (default: %(default)s)"
    )
    if writes == "nothing":
        hidden = argparse.SUPPRESS
        parser.add_argument("--output", dest="runs", default=hidden, help=hidden)


def add_out(
    parser: "argparse._ActionsContainer", text: str, *, metavar: str = "FILE", **more: Any
) -> None:
    """What the command writes: -o, --out or --output; `written_file` reads it."""
    parser.add_argument(*_OUT, dest="out", metavar=metavar, help=text, **more)


def written_file(out: str | None, word: str | None = None) -> Path:
    """The file to write, given by -o or, in commands that take it so, as an argument `word`."""
    if out is None and word is None:
        raise ConfigError("the file to write is missing; give it with -o FILE")
    if out is not None and word is not None:
        raise ConfigError(f"{word!r} and {out!r} are two files to write; give one")
    path = Path(out or word or "")
    if path.is_dir():
        raise ConfigError(
            f"--output {str(path)!r} is a folder; give the file to write. Where runs are is --runs"
        )
    return path


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


def add_database(parser: argparse.ArgumentParser, *, writes: str = "nothing") -> None:
    """The options of commands on the database."""
    parser.add_argument(
        "--database",
        metavar="URL",
        help="path of a SQLite file (.db, .sqlite), postgresql://..., or env:NAME for a variable that "
        f"has either (default: ${URL_VARIABLE}, else {_FILE} below --runs)",
    )
    add_runs(parser, writes=writes)


def database_of(options: argparse.Namespace) -> str:
    """The address that was given, else that of the environment, else a file in the folder of runs."""
    found = options.database or os.environ.get(URL_VARIABLE)
    file = Path(options.runs) / _FILE
    return str(found or (file.absolute() if "=" in options.runs else file))
