"""`metta train`: from words to a configuration, then to `metta.cli.train`."""

import argparse
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.cli.words import WORDS_HELP, resolve_words
from metta.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `metta`."""
    parser = commands.add_parser(
        "train",
        help="train a policy on a Gymnasium environment",
        description=(
            "Trains PPO, shows progress, scores the result on fresh episodes, and saves "
            "policy, "
            "checkpoints, metrics and learning curve in a folder of its own."
        ),
        epilog=(
            "Settings go by any usual name, e.g.: metta train Acrobot-v1 learning_rate=1e-3 n_steps=256. "
            "`metta config --help-for trainer.ppo` explains the settings of a group, `metta presets` lists "
            "the presets."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="PRESET|FILE|NAME=VALUE", help=WORDS_HELP)
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
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show batches, steps and memory of the run; train nothing",
    )


def run(options: argparse.Namespace) -> int:
    """Train, or show what training would take."""
    extra = []
    if options.eval_episodes is not None:
        extra = [f"trainer.evaluation.eval_episodes={options.eval_episodes}"]
    resolved = resolve_words(options.words, extra)
    output = _writable(Path(options.output))
    if options.run is not None:
        _check_run_name(options.run)
    _check_env(resolved)
    _check_device(resolved)
    if options.dry_run:
        from metta.cli.dry_run import dry_run

        return dry_run(resolved)
    from metta.cli.train import train  # torch loads here, not for --help

    return train(resolved=resolved, output=output, run=options.run)


def _check_env(resolved: "Resolved") -> None:
    """Refuse an environment that does not exist before anything is built."""
    import gymnasium

    env_id, origin = resolved.config.env, resolved.origins["trainer.curriculum.env"]
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        hint = did_you_mean(env_id, gymnasium.registry) or f": {error}"
        raise ConfigError(
            f"trainer.curriculum.env ({origin}): gymnasium knows no environment {env_id!r}{hint}"
        ) from error


def _check_device(resolved: "Resolved") -> None:
    """Refuse a device that cannot be used before anything is built."""
    from metta.rl.numerics import resolve_device

    try:
        resolve_device(resolved.config.trainer.device)
    except ConfigError as error:
        origin = resolved.origins["trainer.device"]
        raise ConfigError(f"trainer.device ({origin}): {error}") from error


def _check_run_name(name: str) -> None:
    if Path(name).name != name or name in (".", ".."):
        raise ConfigError(
            f"--run {name!r} is not the name of a folder; leave slashes out, and choose the place by "
            "--output"
        )


def _writable(output: Path) -> Path:
    """The output folder, refused before training rather than after it."""
    existing = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"--output {str(output)!r} cannot be written: {str(existing)!r} is not a folder that you may "
            "write to; choose another one"
        )
    return output
