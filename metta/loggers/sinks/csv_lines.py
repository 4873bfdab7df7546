"""Lines of a table of metrics, as text and as cells by name."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from metta.errors import UnsafeFileError
from metta.loggers.events.reader import lines_from
from metta.loggers.sink import MetricRow
from metta.untrusted.files import open_regular

__all__ = [
    "FIRST_COLUMNS",
    "TableLine",
    "cells_of",
    "columns_of",
    "csv_line",
    "parse_line",
    "table_lines",
]

FIRST_COLUMNS = ("agent_step", "epoch")


class TableLine(NamedTuple):
    """A line of a file."""

    key: tuple[int, int] | None
    """Epoch and agent step; None if they cannot be read."""
    cells: dict[str, str]


def cells_of(row: MetricRow) -> dict[str, str]:
    """Texts of a record, by column."""
    values = {"agent_step": row.agent_step, "epoch": row.epoch, **row.metrics}
    return {name: str(value) for name, value in values.items()}


def csv_line(cells: Mapping[str, str], columns: Sequence[str]) -> bytes:
    """A line of text; cells that a record lacks are empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([cells.get(name, "") for name in columns])
    return text.getvalue().encode("utf-8", "backslashreplace")


def parse_line(line: bytes, columns: Sequence[str]) -> TableLine:
    """The cells of a line, whatever is in it."""
    try:
        found = next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error:
        found = []
    cells = dict(zip(columns, found, strict=False))
    try:
        key = int(cells["epoch"]), int(cells["agent_step"])
    except (KeyError, ValueError):
        return TableLine(None, cells)
    return TableLine(key, cells)


def columns_of(path: Path) -> list[str]:
    """The names in the first line; none if the file does not exist, or begins otherwise."""
    try:
        with open_regular(path, follow_symlink=False) as (stream, _):
            _, line = next(lines_from(stream, 0, path), (0, b""))
            found = next(csv.reader([line.decode("utf-8", "replace")]), [])
    except (UnsafeFileError, csv.Error):
        return []
    return found if tuple(found[:2]) == FIRST_COLUMNS and len(set(found)) == len(found) else []


def table_lines(
    path: Path, columns: Sequence[str], begin: int | None = None
) -> Iterator[TableLine]:
    """Lines after the first one, or from a place on; none if the file does not exist."""
    if not columns:
        return
    with open_regular(path, follow_symlink=False) as (stream, _):
        lines = lines_from(stream, begin or 0, path)
        if begin is None:
            next(lines, None)
        for _, line in lines:
            yield parse_line(line, columns)
