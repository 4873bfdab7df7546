"""Which statistics database a command means."""

import argparse
import os
from pathlib import Path

__all__ = ["URL_VARIABLE", "add_database", "database_of"]

URL_VARIABLE = "METTA_STATS_URL"
"""Environment variable with the database's address."""
_FILE = "stats.db"


def add_database(parser: argparse.ArgumentParser) -> None:
    """The options of commands on the database."""
    parser.add_argument(
        "--database",
        metavar="URL",
        help="path of a SQLite file (.db, .sqlite), postgresql://..., or env:NAME for a variable that "
        f"has either (default: ${URL_VARIABLE}, else {_FILE} below --output)",
    )
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help="where runs are (default: %(default)s)"
    )


def database_of(options: argparse.Namespace) -> str:
    """The address that was given, else that of the environment, else a file in the folder of runs."""
    found = options.database or os.environ.get(URL_VARIABLE)
    file = Path(options.output) / _FILE
    return str(found or (file.absolute() if "=" in options.output else file))
