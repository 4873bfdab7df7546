"""`metta train`: from arguments to a configuration, then to `metta.cli.training`."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.arguments import resolve_arguments
from metta.cli.options import add_allow_inexact, add_runs, add_words
from metta.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["configure", "add_run_options", "checked_options", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Trains PPO, shows progress, scores the result on fresh episodes, and saves policy, checkpoints, "
        "metrics and learning curve in a new folder."
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
    """Options of every command that begins a run."""
    add_words(parser)
    add_runs(parser, writes="run")
    parser.add_argument(
        "--run",
        metavar="NAME",
        help="name of the run's folder (default: preset or environment, seed and time)",
    )
    parser.add_argument(
        "--eval-episodes",
        metavar="N",
        help="fresh episodes that score the final policy; 0: none (trainer.evaluation.eval_episodes)",
    )


def checked_options(options: argparse.Namespace) -> tuple["Resolved", Path]:
    """Settings and output folder of a new run; refuses bad ones before any work."""
    extra = []
    if options.eval_episodes is not None:
        extra = [f"trainer.evaluation.eval_episodes={options.eval_episodes}"]
    resolved = resolve_arguments(options.words, extra)
    output = _writable(Path(options.runs))
    _check_run_name(options.run, resolved)
    _check_parts(resolved)
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


def _check_parts(resolved: "Resolved") -> None:
    """Before anything is built, refuse an environment, a suite or a device that cannot be used."""
    from metta.envs.env_ids import check_env_id
    from metta.rl.learn.numerics import resolve_device
    from metta.train.sim_config import find_suite

    config = resolved.config.trainer
    checks: dict[str, Callable[[], object]] = {
        "trainer.curriculum.env": lambda: check_env_id(config.curriculum.env),
        "trainer.evaluation.suite": lambda: (
            config.evaluation.suite and find_suite(config.evaluation.suite)
        ),
        "trainer.device": lambda: resolve_device(config.device),
    }
    for path, check in checks.items():
        try:
            check()
        except (ConfigError, EnvError) as error:
            raise ConfigError(f"{path} ({resolved.origins[path]}): {error}") from error


def _check_run_name(run: str | None, resolved: "Resolved") -> None:
    """Refuse a name that cannot be a folder's: that of --run, else that of the experiment."""
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
            f"--runs {str(output)!r} cannot be written: {str(existing)!r} is not a folder that you may "
            "write to; choose another one"
        )
    return output
