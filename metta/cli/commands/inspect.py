"""`metta inspect`: what is inside a checkpoint or a policy file."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metta.cli.options import add_runs
from metta.cli.tables import say, shown_bytes, table
from metta.untrusted.text import printable

__all__ = ["configure", "run"]

_TABLES = ("files", "components", "tensors", "problems")
_MAX_LINES, _MAX_CHARACTERS = 80, 100


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Shows what a checkpoint or policy file holds, and whether it is whole."
    parser.epilog = "Exit code 1 if anything is damaged. For a run, the newest checkpoint is shown."
    parser.add_argument(
        "thing",
        metavar="CHECKPOINT|POLICY|RUN|URI",
        help="a folder, a file, file://..., a run's name, or RUN:latest, RUN:best, RUN:v120",
    )
    add_runs(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also load all state, as resuming would; checksums are always compared",
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Print what was found; returns 1 if something is wrong with it."""
    from metta.loggers.events.plain_json import to_json
    from metta.runs.inspection import inspect_named

    found = inspect_named(options.thing, Path(options.runs), load=options.verify)
    say(to_json(found) if options.json else "\n".join(_lines(found)))
    return 1 if found["problems"] else 0


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    facts = {name: value for name, value in found.items() if name not in _TABLES}
    yield _limited([(name, _shown(value)) for name, value in _flat(facts, "")])
    yield ""
    yield _limited([("file", "size", "state", "sha256"), *map(_file_row, found["files"])])
    if "components" in found:
        rows = [
            (
                _shown(part["name"]),
                *(_shown(part[key]) for key in ("version", "tensors", "numbers")),
            )
            for part in found["components"]
        ]
        yield ""
        yield _limited([("component", "version", "tensors", "numbers"), *rows])
    if "tensors" in found:
        rows = [
            (_shown(part["name"]), part["type"], " x ".join(map(str, part["shape"])) or "-")
            for part in found["tensors"]
        ]
        yield ""
        yield _limited([("tensor of the policy", "type", "shape"), *rows])
    for problem in found["problems"]:
        yield ""
        yield f"damaged: {_shown(problem, most=1000)}"


def _file_row(file: Mapping[str, Any]) -> tuple[str, ...]:
    size = "-" if file["bytes"] is None else shown_bytes(file["bytes"])
    return file["name"], size, file["state"], _shown(file["sha256"])


def _limited(rows: list[tuple[str, ...]]) -> str:
    left_out = len(rows) - _MAX_LINES
    shown = table(rows[:_MAX_LINES])
    return f"{shown}\n... and {left_out} more (--json shows all)" if left_out > 0 else shown


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Nested mappings as lines with dotted names."""
    if not isinstance(value, Mapping) or not value:
        yield _shown(name), value
        return
    for key, part in value.items():
        yield from _flat(part, f"{name}.{key}" if name else str(key))


def _shown(value: Any, most: int = _MAX_CHARACTERS) -> str:
    """A value on one line; control characters are written as codes."""
    if value is None:
        return "-"
    text = printable(f"{value:,}" if type(value) is int else str(value))
    return text if len(text) <= most else f"{text[: most - 3]}..."
