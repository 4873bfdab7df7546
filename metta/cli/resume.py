"""`metta resume`: go on with a run."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.errors import ConfigError, UnsafeFileError, did_you_mean

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["add_allow_inexact", "configure", "find_run", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Goes on with a run from its newest checkpoint, with the settings that it has."
    )
    parser.epilog = "A longer run: metta resume runs/first total_timesteps=500_000"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="folder of the run, or its name below --output"
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="settings to change")
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help="where runs are (default: %(default)s)"
    )
    add_allow_inexact(parser)


def add_allow_inexact(parser: argparse.ArgumentParser) -> None:
    """The option of all commands that may go on with a run."""
    parser.add_argument(
        "--allow-inexact",
        action="store_true",
        help="go on also where libraries, threads or device differ from those that the run was saved "
        "under, and its numbers with them",
    )


def run(options: argparse.Namespace) -> int:
    """Resume."""
    if options.run is None:
        raise ConfigError("RUN is missing: which run shall go on? `metta runs` lists them")
    folder = find_run(options.run, Path(options.output))
    resolved = _resolved(folder / "config.yaml", options.words)
    from metta.cli.train import train_in  # torch loads here, not for --help

    _require_checkpoint(folder)
    return train_in(
        folder,
        resolved.config,
        _provenance(folder / "provenance.json", resolved),
        allow_inexact=options.allow_inexact,
    )


def find_run(name: str, output: Path) -> Path:
    """The folder of a run, given by path or by name."""
    for folder in (Path(name), output / name):
        if (folder / "config.yaml").is_file():
            return folder
    known = [path.parent.name for path in sorted(output.glob("*/config.yaml"))]
    raise ConfigError(
        f"there is no run {name!r}: neither {name!r} nor {str(output / name)!r} holds a config.yaml"
        f"{did_you_mean(name, known)}; `metta runs` lists them"
    )


def _require_checkpoint(folder: Path) -> None:
    """Refuse to begin anew under the name of going on; damaged checkpoints are told of elsewhere."""
    from metta.store.checkpoint_files import checkpoint_folders
    from metta.store.run_directory import RunDirectory

    if not checkpoint_folders(RunDirectory(folder).checkpoint_dir):
        place = folder.resolve()  # also of `.`
        again = ["metta", "train", str(place / "config.yaml")]
        again += ["--run", place.name, "--output", str(place.parent)]
        raise ConfigError(
            f"the run {str(folder)!r} has no checkpoint to go on from; train it again from the "
            f"beginning with: {shlex.join(again)}"
        )


def _resolved(config_file: Path, words: list[str]) -> "Resolved":
    from metta.cli.words import sort_words
    from metta.train.layers import resolve

    preset, files, settings = sort_words(words)
    if preset is not None or files:
        raise ConfigError(
            f"{preset or files[0]} would replace the run's settings; change single ones: NAME=VALUE"
        )
    # sizes were checked when the run began, perhaps with an environment that has no id
    return resolve(None, [config_file], settings, check_sizes=False)


def _provenance(file: Path, resolved: "Resolved") -> dict[str, Any]:
    """Who set each value: as stored, except for those that are changed now."""
    from metta.untrusted.json_files import read_json

    fresh = resolved.provenance()
    try:
        stored = dict(read_json(file)["settings"])
    except (UnsafeFileError, ValueError, KeyError, TypeError):
        return fresh  # config.yaml and the command line are all that is known
    for path, about in stored.items():
        if path in fresh["settings"] and fresh["settings"][path]["value"] == about["value"]:
            fresh["settings"][path] = about
    return fresh
