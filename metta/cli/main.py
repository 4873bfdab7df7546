"""`metta`: one parser, one exit code for each way a command can end."""

import argparse
import importlib
import signal
import sys
import threading
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType
from typing import Any

from metta import __version__
from metta.cli.arguments import join_settings
from metta.cli.lost_console import tolerate_lost_console
from metta.cli.tables import say
from metta.errors import (
    ConfigError,
    MettaError,
    MettaWarning,
    MissingExtraError,
    RankGoneError,
    did_you_mean,
)
from metta.untrusted.text import printable_lines

__all__ = ["COMMANDS", "build_parser", "main"]


COMMANDS = {
    "train": "train a policy, on the grid world or any environment",
    "resume": "continue a run",
    "finetune": "begin a new run with the weights of a saved policy",
    "runs": "list runs, or show one",
    "sweep": "try values of settings, and find the best ones",
    "seeds": "train one configuration with several seeds, and show mean and interval",
    "policies": "list saved policies",
    "inspect": "show what is inside a checkpoint or policy",
    "eval": "play fresh episodes with saved policies",
    "enjoy": "watch a policy play, in a window, the terminal or a video",
    "replay": "play a recorded episode, or write it as a video",
    "compare": "compare runs, with confidence intervals",
    "stats": "load event logs into a database, and query it",
    "worker": "do jobs of a queue: evaluations and training runs",
    "export": "write a policy as ONNX or torch.export file",
    "certify": "kill and resume a set-up, and check that it is exact",
    "doctor": "find faults of an environment and its settings, with cause and cure",
    "profile": "show how a run spends its time",
    "config": "show or explain the settings of a run",
    "presets": "list the presets",
    "convert": "turn a torch.save file that you trust into safetensors",
    "completion": "print a script that completes commands in a shell",
}
"""Command -> its line of help. ``metta.cli.commands.<command>`` has ``configure(parser)``, which loads
nothing heavy, and ``run(options)``."""

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_EXIT_CODES = (
    "exit codes: 0 done; 1 failed while running; 2 wrong usage or configuration; "
    "129 stopped by the end of the terminal; 130 stopped by Ctrl-C; 143 stopped by SIGTERM"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see ``metta --help``.

    A command continues even if its terminal is closed.
    """
    with tolerate_lost_console():
        try:
            return _main(arguments)
        except KeyboardInterrupt as interrupt:
            say("metta: interrupted", file=sys.stderr)
            return 128 + int(interrupt.args[0]) if interrupt.args else _INTERRUPTED


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser(given[:1])
    if arguments is None:  # this process runs nothing but the command
        sys.excepthook = _show_bug
    try:
        if given and given[0] not in COMMANDS and not given[0].startswith("-"):
            parser.error(f"there is no command {given[0]!r}{did_you_mean(given[0], COMMANDS)}")
        given = _with_settings(parser, given)
    except ConfigError as error:
        parser.error(str(error))
    options, rest = parser.parse_known_args(given)
    if options.command is None:
        parser.print_help()
        return _OK
    _take_rest(parser, options, rest)
    with _ending_signals(), _plain_warnings():
        return _run(options)


def build_parser(needed: Container[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of every command; only the needed commands are loaded and have arguments."""
    parser = argparse.ArgumentParser(
        prog="metta",
        description="PPO training, from one command to single parts.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"metta {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        own = commands.add_parser(name, help=text, allow_abbrev=False)
        if name in needed:
            _module(name).configure(own)
    return parser


def _with_settings(parser: argparse.ArgumentParser, given: list[str]) -> list[str]:
    """The arguments with settings as ``name=value``, where the command takes settings."""
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    own = commands.choices.get(given[0]) if given else None
    if own is None or not any(action.dest == "words" for action in own._actions):
        return given
    return join_settings(given, own._option_string_actions)


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"metta.cli.commands.{command}")


def _take_rest(
    parser: argparse.ArgumentParser, options: argparse.Namespace, rest: list[str]
) -> None:
    """Add arguments after an option to those before it."""
    unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "words")]
    if unknown:
        hint = _hint_for(unknown[0]) if hasattr(options, "words") else ""
        from metta.secrets import scrub_all  # not needed for --help

        parser.error(f"unrecognized arguments: {' '.join(scrub_all(unknown))}{hint}")
    if rest:
        options.words = [*options.words, *rest]


def _hint_for(word: str) -> str:
    """How to write a setting that was given as an option."""
    from metta.train.settings import setting_paths

    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    return f"; settings are written name=value{did_you_mean(name, setting_paths())}"


def _run(options: argparse.Namespace) -> int:
    try:
        status: int = _module(options.command).run(options)
    except MettaError as error:
        say(_scrubbed(f"metta: {type(error).__name__}: {error}"), file=sys.stderr)
        if isinstance(error, RankGoneError):
            return error.exit_code
        return _USAGE if isinstance(error, ConfigError | MissingExtraError) else _FAILED
    except PermissionError as error:  # a folder of another user
        if error.filename is None:
            raise
        say(
            _scrubbed(f"metta: you may not use {str(error.filename)!r}: {error.strerror}"),
            file=sys.stderr,
        )
        return _FAILED
    return status


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback of a bug, as Python shows it, but without secrets."""
    import traceback  # seldom needed, and slow to import

    lines = traceback.format_exception(kind, error, trace)
    say(_scrubbed("".join(lines)), end="", file=sys.stderr)


def _scrubbed(text: str) -> str:
    from metta.secrets import scrub  # not needed for --help

    return scrub(text)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show metta's warnings as one line, without file names of the library."""
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, MettaWarning):
            say(_scrubbed(f"metta: warning: {message}"), file=sys.stderr)
        else:
            shown = printable_lines(str(message))
            before(message if shown == str(message) else shown, category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextmanager
def _ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: `KeyboardInterrupt` has the signal's number.

    A signal that is ignored stays so, as in ``nohup metta train``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
