"""`metta train`: from words to a configuration, then to `metta.cli.training`."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.arguments import ARGUMENTS_HELP, resolve_arguments
from metta.cli.commands.resume import add_allow_inexact
from metta.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["configure", "add_run_options", "checked_options", "run"]

_SUITE = "trainer.evaluation.suite"


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains PPO, shows progress, scores the result on fresh episodes, and saves "
        "policy, "
        "checkpoints, metrics and learning curve in a folder of its own."
    )
    parser.epilog = (
        "Settings go by any usual name, e.g.: metta train Acrobot-v1 learning_rate=1e-3 n_steps=256. "
        "`metta config --help-for trainer.ppo` explains the settings of a group, `metta presets` lists "
        "the presets."
    )
    add_run_options(parser)
    add_allow_inexact(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show batches, steps and memory of the run; train nothing",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What every command takes that begins a run."""
    parser.add_argument("words", nargs="*", metavar="PRESET|FILE|NAME=VALUE", help=ARGUMENTS_HELP)
    parser.add_argument(
        "--output",
        default="runs",
        metavar="DIR",
        help="where runs are saved (default: %(default)s)",
    )
    parser.add_argument(
        "--run",
        metavar="NAME",
        help="name of the run's folder (default: experiment, seed and time)",
    )
    parser.add_argument(
        "--eval-episodes",
        metavar="N",
        help="fresh episodes that score the final policy; 0: none (trainer.evaluation.eval_episodes)",
    )


def checked_options(options: argparse.Namespace) -> tuple["Resolved", Path]:
    """Settings and output folder of a run that is about to begin, refused before any work."""
    extra = []
    if options.eval_episodes is not None:
        extra = [f"trainer.evaluation.eval_episodes={options.eval_episodes}"]
    resolved = resolve_arguments(options.words, extra)
    output = _writable(Path(options.output))
    _check_run_name(options.run, resolved)
    _check_env(resolved)
    _check_suite(resolved)
    _check_device(resolved)
    return resolved, output


def run(options: argparse.Namespace) -> int:
    """Train, or show what training would take."""
    resolved, output = checked_options(options)
    if options.dry_run:
        from metta.cli.dry_run import dry_run

        return dry_run(resolved)
    from metta.cli.training import train  # torch loads here, not for --help

    return train(
        resolved=resolved, output=output, run=options.run, allow_inexact=options.allow_inexact
    )


def _check_env(resolved: "Resolved") -> None:
    """Refuse an environment that does not exist before anything is built."""
    from metta.envs.env_ids import check_env_id

    env_id, origin = resolved.config.env, resolved.origins["trainer.curriculum.env"]
    try:
        check_env_id(env_id)
    except EnvError as error:
        raise ConfigError(f"trainer.curriculum.env ({origin}): {error}") from error


def _check_suite(resolved: "Resolved") -> None:
    """Refuse a suite that does not exist, or is none."""
    from metta.train.sim_config import find_suite

    suite, origin = resolved.config.trainer.evaluation.suite, resolved.origins[_SUITE]
    if suite is None:
        return
    try:
        find_suite(suite)
    except ConfigError as error:
        raise ConfigError(f"{_SUITE} ({origin}): {error}") from error


def _check_device(resolved: "Resolved") -> None:
    """Refuse a device that cannot be used before anything is built."""
    from metta.rl.learn.numerics import resolve_device

    try:
        resolve_device(resolved.config.trainer.device)
    except ConfigError as error:
        origin = resolved.origins["trainer.device"]
        raise ConfigError(f"trainer.device ({origin}): {error}") from error


def _check_run_name(run: str | None, resolved: "Resolved") -> None:
    """Refuse a name that is no folder's: of --run, or without it of the experiment."""
    from metta.untrusted.paths import check_name

    if run is not None:
        check_name(run, "--run")
        return
    origin = resolved.origins["experiment_name"]
    check_name(resolved.config.experiment_name, f"experiment_name ({origin})")


def _writable(output: Path) -> Path:
    """The output folder, refused before training rather than after it."""
    existing = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"--output {str(output)!r} cannot be written: {str(existing)!r} is not a folder that you may "
            "write to; choose another one"
        )
    return output
