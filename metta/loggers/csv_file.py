"""Rows as `metrics.csv`, with columns that may grow."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from metta.files import atomic_write
from metta.loggers.append_file import AppendFile
from metta.loggers.sink import MetricRow
from metta.untrusted.files import open_text

__all__ = ["CsvSink"]

_FIRST_COLUMNS = ["agent_step", "epoch"]


class CsvSink:
    """One line per row; a metric that a row lacks is empty there.

    An existing file is continued. A metric that was not seen before adds a column, for which the file
    is written anew, atomically.
    """

    name = "csv"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: AppendFile | None = None
        self._columns: list[str] = []

    def write(self, row: MetricRow) -> None:
        """Append one line."""
        file = self._file or self._open()
        known = set(self._columns)
        missing = [name for name in row.metrics if name not in known]
        if missing:
            file = self._widen(missing)
        file.append(_line(_cells(row, self._columns)))

    def rewrite(self, rows: Sequence[MetricRow]) -> None:
        """Put these rows in the place of all there are."""
        if not rows and not self.path.exists():
            return
        self.close()
        names = dict.fromkeys(name for row in rows for name in row.metrics)
        columns = [*_FIRST_COLUMNS, *(name for name in names if name not in _FIRST_COLUMNS)]
        lines = [_line(columns), *(_line(_cells(row, columns)) for row in rows)]
        atomic_write(self.path, lambda target: _write_bytes(target, b"".join(lines)))

    def _open(self) -> AppendFile:
        file = AppendFile(self.path)
        self._file = file
        if file.size == 0:
            self._columns = list(_FIRST_COLUMNS)
            file.append(_line(self._columns))
            return file
        with open_text(self.path) as stream:
            self._columns = next(csv.reader(stream))
        return file

    def _widen(self, names: list[str]) -> AppendFile:
        """Write the file anew with more columns."""
        columns = [*self._columns, *names]

        def rewrite(target: Path) -> None:
            with open_text(self.path) as old, target.open("wb") as new:
                lines = csv.reader(old)
                next(lines)
                new.write(_line(columns))
                new.writelines(_line([*line, *[""] * len(names)]) for line in lines)

        self.close()
        atomic_write(self.path, rewrite)
        return self._open()

    def flush(self) -> None:
        """Nothing waits: every line is written at once."""

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _cells(row: MetricRow, columns: Sequence[str]) -> list[str]:
    values = {"agent_step": row.agent_step, "epoch": row.epoch, **row.metrics}
    return [str(values.get(name, "")) for name in columns]


def _write_bytes(target: Path, content: bytes) -> None:
    target.write_bytes(content)


def _line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")
