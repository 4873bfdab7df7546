"""Records as `metrics.csv` or `evaluations.csv`, with columns that may be added later."""

import dataclasses
import os
from pathlib import Path

from metta.files import atomic_write
from metta.loggers.events.append_file import AppendFile
from metta.loggers.events.history import Continuation, LogTail, last_event
from metta.loggers.sink import MetricRow
from metta.loggers.sinks.csv_lines import FIRST_COLUMNS, cells_of, columns_of, csv_line, table_lines
from metta.loggers.sinks.csv_repair import follow_log

__all__ = ["CsvSink"]


class CsvSink:
    """One line per record; a metric that a record lacks is empty there.

    An existing file is continued. A metric that was not seen before adds a column, for which the file
    is rewritten atomically. A file that was removed or replaced is written again, in full. Late scores
    have a separate table, with `of_late_scores`: there they are in the order of their epochs.
    """

    def __init__(self, path: str | os.PathLike[str], *, of_late_scores: bool = False) -> None:
        self.path = Path(path)
        self.name = "evaluations" if of_late_scores else "csv"
        self._of_late_scores = of_late_scores
        self._file: AppendFile | None = None
        self._columns: list[str] = []

    def write(self, row: MetricRow) -> None:
        """Append one line, if it belongs to this table."""
        if row.is_late != self._of_late_scores:
            return
        file = self._file or self._open()
        if not file.is_in_place():
            file.put_back()
        known = set(self._columns)
        missing = [name for name in row.metrics if name not in known]
        if missing:
            file = self._widen(missing)
        file.append(csv_line(cells_of(row), self._columns))

    def rewrite(self, continuation: Continuation) -> str:
        """Follow the event log, see `follow_log`; returns a message, or an empty text."""
        self.close()
        if self._of_late_scores:
            log = continuation.tail.path
            if not self.path.exists() and last_event(log, "evaluation") is None:
                return ""  # else all of the log would be searched
            tail = LogTail(log, of_late_scores=True)
            continuation = dataclasses.replace(continuation, tail=tail)
        return follow_log(self.path, continuation)

    def _open(self) -> AppendFile:
        file = AppendFile(self.path)
        self._file = file
        self._columns = columns_of(self.path)
        if not self._columns:
            self._columns = list(FIRST_COLUMNS)
            file.append(csv_line({name: name for name in self._columns}, self._columns))
        return file

    def _widen(self, names: list[str]) -> AppendFile:
        """Rewrite the file with more columns."""
        old, columns = self._columns, [*self._columns, *names]

        def rewrite(target: Path) -> None:
            with target.open("wb") as new:
                new.write(csv_line({name: name for name in columns}, columns))
                for line in table_lines(self.path, old):
                    new.write(csv_line(line.cells, columns))

        self.close()
        atomic_write(self.path, rewrite)
        return self._open()

    def flush(self) -> None:
        """Nothing waits: every line is written at once."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
