"""`metta`: train from the command line."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from metta import __version__
from metta.errors import ConfigError, MettaError
from metta.train.presets import preset_for
from metta.train.settings import apply_settings, setting_values

__all__ = ["main"]

_OK, _FAILED, _INTERRUPTED = 0, 2, 130
_DEFAULT_ENV = "CartPole-v1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or 2 for an error that was explained, or 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        _parser().print_help()
        return _OK
    env, pairs = options.env, options.settings
    if "=" in env:  # no Gymnasium id has one: the environment was left out
        env, pairs = _DEFAULT_ENV, [env, *pairs]
    try:
        if options.list_settings:
            return _list_settings(env, _settings(pairs))
        from metta.cli.train import train  # torch loads here, not for --help

        return train(
            env=env,
            settings=_settings(pairs),
            output=_writable(Path(options.output)),
            eval_episodes=options.eval_episodes,
        )
    except MettaError as error:
        print(f"metta: {type(error).__name__}: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("metta: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metta", description="PPO training, from one command to single parts."
    )
    parser.add_argument("--version", action="version", version=f"metta {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="train a policy on a Gymnasium environment",
        description=(
            "Trains PPO, shows progress, scores the result on fresh episodes, and saves policy, "
            "metrics and learning curve under the output folder."
        ),
        epilog=(
            "Settings go by any usual name, e.g.: metta train Acrobot-v1 learning_rate=1e-3 n_steps=256. "
            "Well-known environments begin with settings that suit them (their preset)."
        ),
    )
    train.add_argument(
        "env", nargs="?", default=_DEFAULT_ENV, help="Gymnasium id (default: %(default)s)"
    )
    train.add_argument(
        "settings", nargs="*", metavar="NAME=VALUE", help="settings laid over the preset"
    )
    train.add_argument(
        "--output",
        default="runs",
        metavar="DIR",
        help="where runs are saved (default: %(default)s)",
    )
    train.add_argument(
        "--eval-episodes",
        type=int,
        default=20,
        metavar="N",
        help="fresh episodes that score the final policy; 0: none (default: %(default)s)",
    )
    train.add_argument(
        "--list-settings",
        action="store_true",
        help="show every setting and its value, train nothing",
    )
    return parser


def _list_settings(env: str, settings: dict[str, str]) -> int:
    config = apply_settings(preset_for(env), settings)
    for path, value in setting_values(config).items():
        print(f"{path} = {value}")
    return _OK


def _writable(output: Path) -> Path:
    """The output folder, refused before training rather than after it."""
    existing = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"--output {str(output)!r} cannot be written: {str(existing)!r} is not a folder that you may "
            "write to; choose another one"
        )
    return output


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"{pair!r} is not a setting; write NAME=VALUE, e.g. learning_rate=1e-3"
            )
        settings[name] = value
    return settings


if __name__ == "__main__":
    sys.exit(main())
