"""`metta resume`: go on with a run."""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.errors import ConfigError, UnsafeFileError, did_you_mean

if TYPE_CHECKING:
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import Resolved

__all__ = ["add_allow_inexact", "configure", "find_run", "place_of", "resume_command", "run"]


_FOLDERS = ("checkpoint_dir", "replay_dir")


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
    parser.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="where the run has its checkpoints, if that is outside of its folder",
    )
    parser.add_argument(
        "--replay-dir",
        metavar="DIR",
        help="where the run has its replays, if that is outside of its folder",
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
    resolved = _resolved(folder, options.words)
    from metta.store.run_directory import RunDirectory

    directory = RunDirectory(folder)
    given = {kind: getattr(options, kind) for kind in _FOLDERS}
    # refused before any work where it is outside of the run and not given
    places = {kind: given[kind] or place_of(directory, kind, given) for kind in _FOLDERS}
    from metta.cli.train import train_in  # torch loads here, not for --help

    _require_checkpoint(folder, Path(places["checkpoint_dir"]))
    return train_in(
        folder,
        resolved.config,
        _provenance(directory.provenance_file, resolved),
        allow_inexact=options.allow_inexact,
        **given,
    )


def place_of(directory: "RunDirectory", kind: str, given: Mapping[str, str | None]) -> Path:
    """A folder of a run; where it is outside of it, the error says how to resume."""
    return directory.place(
        kind, lambda folder: resume_command(directory.path, {**given, kind: folder})
    )


def resume_command(run: Path, given: Mapping[str, str | None]) -> str:
    """What to type so that a run goes on with the folders that it was `given`."""
    words = ["metta", "resume", str(run)]
    for kind, folder in given.items():
        if folder is not None:
            words += [f"--{kind.replace('_', '-')}", folder]
    return shlex.join(words)


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


def _require_checkpoint(folder: Path, checkpoint_dir: Path) -> None:
    """Refuse to begin anew under the name of going on; damaged checkpoints are told of elsewhere."""
    from metta.store.checkpoint_files import checkpoint_folders

    if not checkpoint_folders(checkpoint_dir):
        place = folder.resolve()  # also of `.`
        again = ["metta", "train", str(place / "config.yaml")]
        again += ["--run", place.name, "--output", str(place.parent)]
        raise ConfigError(
            f"the run {str(folder)!r} has no checkpoint to go on from; train it again from the "
            f"beginning with: {shlex.join(again)}"
        )


def _resolved(folder: Path, words: list[str]) -> "Resolved":
    from metta.cli.words import sort_words
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import resolve

    preset, files, settings = sort_words(words)
    if preset is not None or files:
        raise ConfigError(
            f"{preset or files[0]} would replace the run's settings; change single ones: NAME=VALUE"
        )
    # sizes were checked when the run began, perhaps with an environment that has no id
    return resolve(None, [RunDirectory(folder).config_file], settings, check_sizes=False)


def _provenance(file: Path, resolved: "Resolved") -> dict[str, Any]:
    """Who set each value: as stored, except for those that are changed now."""
    from metta.untrusted.json_files import read_json

    fresh = resolved.provenance()
    try:
        stored = dict(read_json(file)["settings"])
    except (UnsafeFileError, ValueError, KeyError, TypeError):
        return fresh  # config.yaml and the command line are all that is known
    for path, about in stored.items():
        if not isinstance(about, dict) or not isinstance(about.get("origin"), str):
            continue
        if path in fresh["settings"] and fresh["settings"][path]["value"] == about.get("value"):
            fresh["settings"][path] = about
    return fresh
