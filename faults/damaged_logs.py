"""Damage to the event log and the table of metrics of a run, which is then resumed by the command.

Each resume must name the damage (a warning, or an error before anything is written), or end with the rows
of a run that was left alone. Where the log alone was damaged, the table must have every row in the end.
"""

import csv
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.training import NOT_COMPARED, STEPS_PER_EPOCH, comparable_rows
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.errors import MettaError

LOG, TABLE = "events.jsonl", "metrics.csv"
_LAST_EPOCH = 14
_NAMED = (
    "is damaged: ",
    "is the log of another run",
    "is not an event",
    "that the event log lacks",
)
_SECONDS = 120.0

Damage = Callable[[bytes, random.Random, bytes], bytes | None]
"""Takes the content, random numbers and the file of another run; None removes the file."""


def _cut(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    return content[: numbers.randrange(len(content))]


def _cut_at_a_line(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: numbers.randrange(1, len(lines))])


def _without_lines(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    first = numbers.randrange(1, len(lines) - 1)
    del lines[first : first + numbers.randrange(1, 6)]
    return b"".join(lines)


def _other_digit(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    place = numbers.choice(places)
    digit = numbers.choice([d for d in b"0123456789" if d != content[place]])
    return content[:place] + bytes([digit]) + content[place + 1 :]


def _other_bit(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    changed = bytearray(content)
    changed[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
    return bytes(changed)


def _swapped(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = numbers.randrange(1, len(lines) - 1)
    lines[place], lines[place + 1] = lines[place + 1], lines[place]
    return b"".join(lines)


def _twice(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    place = numbers.randrange(1, len(lines))
    return b"".join([*lines[:place], lines[place - 1], *lines[place:]])


def _zeros(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    place = numbers.randrange(len(content))
    size = min(numbers.randrange(1, 512), len(content) - place)
    return content[:place] + bytes(size) + content[place + size :]


def _nonsense(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(numbers.randrange(1, len(lines)), b'{"run": [nonsense], 1e999\n')
    return b"".join(lines)


def _wrong_type(content: bytes, numbers: random.Random, _: bytes) -> bytes:
    parts = content.split(b'"epoch":') if b'"epoch":' in content else content.split(b",")
    place = numbers.randrange(1, len(parts))
    parts[place] = b'["a"]' + parts[place].lstrip(b"0123456789.")
    return (b'"epoch":' if b'"epoch":' in content else b",").join(parts)


def _empty(*_: object) -> bytes:
    return b""


def _removed(*_: object) -> None:
    return None


def _of_another_run(_: bytes, numbers: random.Random, other: bytes) -> bytes:
    lines = other.splitlines(keepends=True)
    return b"".join(lines[: numbers.randrange(2, len(lines) + 1)])


DAMAGES: dict[str, Damage] = {
    "cut": _cut,
    "cut at a line": _cut_at_a_line,
    "lines removed": _without_lines,
    "a digit changed": _other_digit,
    "a bit changed": _other_bit,
    "lines swapped": _swapped,
    "a line twice": _twice,
    "zeros": _zeros,
    "nonsense": _nonsense,
    "a wrong type": _wrong_type,
    "of another run": _of_another_run,
    "empty": _empty,
    "removed": _removed,
}


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` damages, in turn over kinds, files, and runs that were killed or had finished."""
    numbers = random.Random(seed)
    plans = [
        (kind, file, run)
        for kind in DAMAGES
        for file in (LOG, TABLE)
        for run in ("killed", "finished")
    ]
    with Zygote(["faults.damaged_logs:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        for name in ("killed", "finished", "another"):
            make_run(zygote, folder / name, die_after=10 if name == "killed" else None)
        wholes = {name: folder / f"{name}-whole" for name in ("killed", "finished")}
        for name, whole in wholes.items():
            shutil.copytree(folder / name, whole)
            code, text = resume(zygote, whole)
            assert code == 0, f"the run that was left alone ended with {code}: {text}"
            assert not any(word in text for word in _NAMED), text
        for number in range(count):
            kind, file, run = plans[number % len(plans)]
            place = folder / f"run-{number}"
            shutil.copytree(folder / run, place)
            damage(place / file, kind, numbers, (folder / "another" / file).read_bytes())
            code, text = resume(zygote, place)
            outcome = verdict(code, text, place, wholes[run], file)
            detail = {"exit_code": code, "said": text[-300:]} if outcome != OK else {}
            yield Trial("damaged_logs", seed, f"{file}: {kind}, {run}", outcome, detail=detail)
            shutil.rmtree(place)


def make_run(zygote: Zygote, folder: Path, die_after: int | None) -> None:
    run = {"name": "mlp", "folder": str(folder), "checkpoint_interval": 4}
    code = zygote.start("faults.training:train", **run, die_after=die_after).wait(_SECONDS)
    assert code == (0 if die_after is None else -9), f"the run ended with {code}"


def damage(file: Path, kind: str, numbers: random.Random, other: bytes) -> None:
    """Replace a file by what a kind of damage makes of it; never by the same."""
    content = file.read_bytes()
    changed: bytes | None = content
    while changed == content:
        changed = DAMAGES[kind](content, numbers, other)
    if changed is None:
        file.unlink()
    else:
        file.write_bytes(changed)


def resume(zygote: Zygote, folder: Path) -> tuple[int, str]:
    """Resume a run by the command; returns its exit code and its output."""
    output = folder / "said.txt"
    child = zygote.start("faults.damaged_logs:run_command", folder=str(folder), output=str(output))
    code = child.wait(_SECONDS)
    return code, output.read_text()


def run_command(folder: str, output: str) -> None:
    """``metta resume`` in this process, with its output in a file."""
    from metta.cli.main import main

    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = main(["resume", folder, f"total_timesteps={_LAST_EPOCH * STEPS_PER_EPOCH}"])
    raise SystemExit(code)


def warm_up() -> None:
    """Import what the command imports late."""
    from faults import training

    training.warm_up()


def verdict(code: int, text: str, folder: Path, whole: Path, file: str) -> str:
    """ "ok", or what went wrong."""
    is_named = any(words in text for words in _NAMED)
    if "Traceback" in text:
        return "a traceback"
    if code != 0:
        return OK if code == 1 and "EventLogError" in text else f"it ended with {code}"
    is_table_whole = table_rows(folder) == table_rows(whole)
    if file == LOG and not is_table_whole:
        return "the table lost or changed rows"
    is_log_whole = log_rows(folder) == log_rows(whole)
    return OK if is_named or (is_table_whole and is_log_whole) else "a silent difference"


def log_rows(folder: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return comparable_rows(folder)
    except (MettaError, Warning) as error:
        return str(error)


def table_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of the table, without what a clock decides."""
    with (folder / TABLE).open(newline="", errors="replace") as lines:
        return [
            {name: cell for name, cell in row.items() if not str(name).startswith(NOT_COMPARED)}
            for row in csv.DictReader(lines)
        ]
