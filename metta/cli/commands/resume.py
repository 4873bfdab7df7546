"""`metta resume`: continue a run."""

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import add_allow_inexact, add_checkpoint_dir, add_runs
from metta.cli.own_envs import importable_setting, recall_env
from metta.cli.policy_names import find_run
from metta.cli.tables import say
from metta.errors import ConfigError

if TYPE_CHECKING:
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import Resolved

__all__ = ["configure", "place_of", "resume_command", "run"]


_FOLDERS = ("checkpoint_dir", "replay_dir")


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Continues a run from its newest checkpoint, with its own settings."
    parser.epilog = "A longer run: metta resume runs/first total_timesteps=500_000"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="folder of the run, or its name below --runs"
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="settings to change")
    add_runs(parser)
    add_checkpoint_dir(parser)
    parser.add_argument(
        "--replay-dir",
        metavar="DIR",
        help="where the run has its replays, if that is outside of its folder",
    )
    add_allow_inexact(parser)
    parser.add_argument(
        "--restore-settings",
        action="store_true",
        help="take the settings from the newest checkpoint, and rewrite config.yaml: if it is missing, "
        "damaged or was edited",
    )


def run(options: argparse.Namespace) -> int:
    """Resume."""
    if options.run is None:
        raise ConfigError("RUN is missing: name the run to continue; `metta runs` lists them")
    folder = _find_run_to_resume(options.run, Path(options.runs))
    settings = _settings(options.words)
    from metta.store.run_directory import RunDirectory

    directory = RunDirectory(folder)
    given = {kind: getattr(options, kind) for kind in _FOLDERS}
    # refused before any work if it is outside of the run and not given
    places = {kind: given[kind] or place_of(directory, kind, given) for kind in _FOLDERS}
    checkpoints = Path(places["checkpoint_dir"])
    if options.restore_settings:
        resolved = _resolved_from_checkpoint(folder, checkpoints, settings)
    else:
        resolved = _resolved(folder, settings)
    from metta.cli.training import train_in  # torch loads here, not for --help
    from metta.train.parsing.origins import COMMAND_LINE

    _require_checkpoint(folder, checkpoints)
    recall_env(folder, resolved.config.env)
    changes = {path for path, origin in resolved.origins.items() if origin == COMMAND_LINE}
    return train_in(
        folder,
        resolved.config,
        resolved.provenance(),
        allow_inexact=options.allow_inexact,
        changes=changes,
        **given,
    )


def place_of(directory: "RunDirectory", kind: str, given: Mapping[str, str | None]) -> Path:
    """A folder of a run; if it is outside of the run, the error says how to resume."""
    return directory.place(
        kind, lambda folder: resume_command(directory.path, {**given, kind: folder})
    )


def resume_command(run: Path, given: Mapping[str, str | None]) -> str:
    """The command that continues a run with the folders that it was `given`."""
    words = ["metta", "resume", str(run)]
    for kind, folder in given.items():
        if folder is not None:
            words += [f"--{kind.replace('_', '-')}", folder]
    return shlex.join(words)


def _find_run_to_resume(name: str, output: Path) -> Path:
    """As `find_run`; also finds a run of which only checkpoints are left."""
    for folder in (Path(name), output / name):
        if (folder / "checkpoints").is_dir():
            return folder
    return find_run(name, output)


def _require_checkpoint(folder: Path, checkpoint_dir: Path) -> None:
    """Refuse to resume a run without checkpoints; damaged ones are reported elsewhere."""
    from metta.store.checkpoints.files import checkpoint_folders

    if not checkpoint_folders(checkpoint_dir):
        place = folder.resolve()  # also of `.`
        again = ["metta", "train", str(place / "config.yaml")]
        again += ["--run", place.name, "--runs", str(place.parent)]
        raise ConfigError(
            f"the run {str(folder)!r} has no checkpoint to continue from; train it again from the "
            f"beginning with: {shlex.join(again)}"
        )


def _settings(words: list[str]) -> list[str]:
    """The arguments, if all of them are NAME=VALUE."""
    from metta.cli.arguments import sort_arguments

    preset, files, settings = sort_arguments(words)
    if preset is not None or files:
        raise ConfigError(
            f"{preset or files[0]} would replace the run's settings; change single ones: NAME=VALUE"
        )
    return [importable_setting(setting) for setting in settings]


def _resolved(folder: Path, settings: list[str]) -> "Resolved":
    """The settings of ``config.yaml`` with those of this call over them."""
    from metta.store.run_directory import RunDirectory
    from metta.train.layers import resolve

    file = RunDirectory(folder).config_file
    try:
        if not os.path.lexists(file):
            raise ConfigError(f"{str(file)!r} is missing")
        resolve(None, [file], check_sizes=False)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nThe newest checkpoint holds the settings too; to take them from there: "
            f"metta resume {shlex.quote(str(folder))} --restore-settings"
        ) from error
    # sizes were checked when the run began, perhaps with an environment that has no id
    return resolve(None, [file], settings, check_sizes=False)


def _resolved_from_checkpoint(
    folder: Path, checkpoint_dir: Path, settings: list[str]
) -> "Resolved":
    """The settings of the newest checkpoint with those of this call over them."""
    from metta.rl.resume.conditions import RunConditions
    from metta.store.checkpoints.files import read_newest_checkpoint
    from metta.train.changes import config_of
    from metta.train.layers import resolve

    _require_checkpoint(folder, checkpoint_dir)
    checkpoint = read_newest_checkpoint(checkpoint_dir)
    assert checkpoint is not None
    conditions = checkpoint.snapshot.get(RunConditions.state_name, {}).get("state", {})
    if not conditions.get("settings"):
        raise ConfigError(
            f"{str(checkpoint.path)!r} holds no settings: it was made by an older version of metta; "
            "restore config.yaml from a copy"
        )
    say(f"settings are those of {checkpoint.path}")
    return resolve(config_of(conditions["settings"]), [], settings, check_sizes=False)
