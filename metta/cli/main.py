"""`metta`: one parser, one exit code for each way a command can end."""

import argparse
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from metta import __version__
from metta.cli.words import join_dotted
from metta.errors import ConfigError, MettaError, MettaWarning, MissingExtraError, did_you_mean

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = {
    "train": "metta.cli.train_command",
    "resume": "metta.cli.resume",
    "runs": "metta.cli.runs",
    "config": "metta.cli.config_command",
    "presets": "metta.cli.presets_command",
    "completion": "metta.cli.completion",
}
"""Command -> module with ``add_parser(commands)``, which loads nothing heavy, and ``run(options)``."""

_OK, _FAILED, _USAGE, _INTERRUPTED, _TERMINATED = 0, 1, 2, 130, 143
_EXIT_CODES = (
    "exit codes: 0 done; 1 failed while running; 2 wrong usage or configuration; "
    "130 stopped by Ctrl-C; 143 stopped by SIGTERM"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see ``metta --help``."""
    parser = build_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] not in COMMANDS and not given[0].startswith("-"):
            parser.error(f"there is no command {given[0]!r}{did_you_mean(given[0], COMMANDS)}")
        given = join_dotted(given)
    except ConfigError as error:
        parser.error(str(error))
    options, rest = parser.parse_known_args(given)
    if options.command is None:
        parser.print_help()
        return _OK
    _take_rest(parser, options, rest)
    with _sigterm() as terminated, _plain_warnings():
        status = _run(options)
    return _TERMINATED if terminated and status == _INTERRUPTED else status


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="metta",
        description="PPO training, from one command to single parts.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"metta {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        _module(name).add_parser(commands)
    return parser


def _module(command: str) -> ModuleType:
    return importlib.import_module(COMMANDS[command])


def _take_rest(
    parser: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]
) -> None:
    """Words that stand behind an option belong to the words before it."""
    unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "words")]
    if unknown:
        hint = _hint_for(unknown[0]) if hasattr(options, "words") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if rest:
        options.words = [*options.words, *rest]


def _hint_for(word: str) -> str:
    """How a setting that was given like an option is written."""
    from metta.train.settings import setting_paths

    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    if name in setting_paths():
        return f"; write {name}=VALUE"
    return f"; settings are written name=value{did_you_mean(name, setting_paths())}"


def _run(options: argparse.Namespace) -> int:
    try:
        status: int = _module(options.command).run(options)
    except MettaError as error:
        print(f"metta: {type(error).__name__}: {error}", file=sys.stderr)
        return _USAGE if isinstance(error, ConfigError | MissingExtraError) else _FAILED
    except KeyboardInterrupt:
        print("metta: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough, e.g. `metta config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    return status


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Metta's warnings as a line for people, without file names of the library."""
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, MettaWarning):
            print(f"metta: warning: {message}", file=sys.stderr)
        else:
            before(message, category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextmanager
def _sigterm() -> Iterator[list[int]]:
    """SIGTERM ends a command as Ctrl-C does, and is remembered in the list."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
