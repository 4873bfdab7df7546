"""`metta presets`: the list of presets."""

import argparse

from metta.cli.tables import say

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Lists the presets: settings that suit a task, or the defaults of other libraries."
    )


def run(options: argparse.Namespace) -> int:
    """Print a line per preset."""
    del options  # the command has none
    from metta.train.presets import PRESETS

    width = max(map(len, PRESETS))
    for name, build in PRESETS.items():
        say(f"{name:<{width}}  {(build.__doc__ or '').partition(chr(10))[0]}")
    return 0
