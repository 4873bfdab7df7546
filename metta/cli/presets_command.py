"""`metta presets`: what there is to begin with."""

import argparse
from typing import Any

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `metta`."""
    commands.add_parser(
        "presets",
        help="list the presets",
        description="Lists the presets: settings that suit a task or that other libraries begin with.",
        allow_abbrev=False,
    )


def run(options: argparse.Namespace) -> int:
    """Print a line per preset."""
    del options  # the command has none
    from metta.train.presets import PRESETS

    width = max(map(len, PRESETS))
    for name, build in PRESETS.items():
        print(f"{name:<{width}}  {(build.__doc__ or '').partition(chr(10))[0]}")
    return 0
