"""A table of metrics follows the event log when a run continues; what only the table has is kept."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from metta.files import atomic_write
from metta.loggers.events.history import Continuation
from metta.loggers.events.reader import lines_backwards
from metta.loggers.sinks.csv_lines import (
    FIRST_COLUMNS,
    TableLine,
    cells_of,
    columns_of,
    csv_line,
    parse_line,
    table_lines,
)
from metta.untrusted.files import open_regular

__all__ = ["follow_log"]


def follow_log(path: Path, continuation: Continuation) -> str:
    """Bring a table in line with the records of the log that count; returns a message, or an empty text.

    The records of a log that is known to be whole replace the rows of the table. Otherwise rows up to the
    epoch that only the table has are kept. Of a long log only the tail is compared, or as much as it takes
    if the table lacks older rows.
    """
    tail = continuation.tail
    if not path.exists() and tail.last is None:
        return ""
    there = columns_of(path)
    begin = _begin_of_tail(path, there, continuation)
    columns = there if begin is not None or continuation.keeps_others else []
    names = dict.fromkeys([*FIRST_COLUMNS, *columns])
    for cells in _merged(table_lines(path, there, begin), continuation, _Extras()):
        names.update(dict.fromkeys(cells))
    wanted, extras = list(names), _Extras()

    def write(target: Path) -> None:
        with target.open("wb") as new:
            new.write(csv_line({name: name for name in wanted}, wanted))
            if begin is not None:
                new.writelines(_lines_before(path, there, wanted, begin))
            old = table_lines(path, there, begin)
            new.writelines(csv_line(one, wanted) for one in _merged(old, continuation, extras))

    if begin is None or wanted != there:
        atomic_write(path, write)
    else:  # in place: a table may have a gigabyte
        old = list(table_lines(path, there, begin))  # no more than the tail has
        lines = (csv_line(cells, wanted) for cells in _merged(iter(old), continuation, extras))
        _replace_end(path, begin, lines)
    return extras.text()


class _Extras:
    """What a table has that the log lacks."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.unreadable = 0

    def text(self) -> str:
        found = []
        if self.kept:
            first, last = min(self.kept), max(self.kept)
            found.append(
                f"has {len(self.kept)} rows of epochs {first} to {last} that the event log lacks; they "
                "are kept"
            )
        if self.unreadable:
            found.append(f"had {self.unreadable} lines that cannot be read; they are left out")
        return ", and ".join(found)


def _begin_of_tail(path: Path, columns: list[str], continuation: Continuation) -> int | None:
    """Where the lines begin that are compared with the tail of the log; None: with all of the log."""
    tail = continuation.tail
    tail.reach(next((epoch for _, epoch in _epochs_backwards(path, columns)), -1))
    if tail.is_whole or tail.first is None:
        return None
    first, places = tail.first.epoch, _epochs_backwards(path, columns)
    return next((end for end, epoch in places if epoch < first), None)


def _epochs_backwards(path: Path, columns: list[str]) -> Iterator[tuple[int, int]]:
    """Where each readable line ends, and its epoch, from the last line back."""
    if not columns:
        return
    with open_regular(path, follow_symlink=False) as (stream, size):
        for begin, line in lines_backwards(stream, size, path):
            key = parse_line(line, columns).key
            if key is not None:
                yield begin + len(line), key[0]


def _merged(
    old: Iterator[TableLine], continuation: Continuation, extras: _Extras
) -> Iterator[Mapping[str, str]]:
    """Records of the log in order; if it may be damaged, lines of the table, and records that it lacks."""
    if not continuation.keeps_others:
        yield from map(cells_of, continuation.tail)
        return
    waiting = _readable(old, continuation.epoch, extras)
    line, before = next(waiting, None), (-1, -1)
    for row in continuation.tail:
        key = row.epoch, row.agent_step
        while line is not None and line.key < key:
            extras.kept.append(line.key[0])
            yield line.cells
            line = next(waiting, None)
        if line is not None and line.key == key:
            yield line.cells
            line = next(waiting, None)
        elif line is None or key > before:  # else it is in the log twice
            yield cells_of(row)
        before = max(before, key)
    while line is not None:
        extras.kept.append(line.key[0])
        yield line.cells
        line = next(waiting, None)


class _KeyedLine(NamedTuple):
    key: tuple[int, int]
    cells: dict[str, str]


def _readable(old: Iterator[TableLine], epoch: int, extras: _Extras) -> Iterator[_KeyedLine]:
    for line in old:
        if line.key is None:
            extras.unreadable += 1
        elif line.key[0] <= epoch:
            yield _KeyedLine(line.key, line.cells)


def _lines_before(path: Path, columns: list[str], wanted: list[str], end: int) -> Iterator[bytes]:
    with open_regular(path, follow_symlink=False) as (stream, _):
        stream.readline()
        while stream.tell() < end:
            yield csv_line(parse_line(stream.readline(), columns).cells, wanted)


def _replace_end(path: Path, begin: int, lines: Iterator[bytes]) -> None:
    """Cut a file where it first differs from these lines, and write the others after it."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "r+b") as file:  # noqa: PTH123  # a descriptor has no path
        place = file.seek(begin)
        for line in lines:
            if file.read(len(line)) != line:
                file.seek(place)
                file.truncate()
                file.write(line)
                file.writelines(lines)
            place = file.tell()
        file.truncate(place)
        file.flush()
        os.fsync(file.fileno())
