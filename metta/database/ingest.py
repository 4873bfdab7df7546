"""`Ingester`: loads event logs into the statistics database, each event once."""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from metta.database.batch_writer import insert_absent, name_ids_of, names_in, write_events
from metta.database.connection import OpenDatabase, database_errors
from metta.database.creation import TableMaker
from metta.database.log_reader import LogBatch, LogReader, Place
from metta.database.patience import pauses
from metta.database.schema import METADATA, events, logs, runs
from metta.errors import DatabaseError, DatabaseUnavailableError, EventLogError, MettaWarning

__all__ = ["IngestReport", "Ingester", "logs_below"]

_LOG_NAME = "events.jsonl"
_PAUSE_SECONDS = 0.5, 30.0
"""Between tries while the database is away: the first pause, and the longest."""


@dataclass
class IngestReport:
    """What was loaded into the database."""

    num_events: int = 0
    num_rows: int = 0
    """Rows of facts that the events brought: metrics, episodes, scores and others."""
    num_unknown: int = 0
    """Events among them of kinds that have no table; they are kept as they are."""
    problems: dict[str, str] = field(default_factory=dict)
    """Log -> why it could not be read to the end."""

    def add(self, other: "IngestReport") -> None:
        """Add the counts of another report."""
        self.num_events += other.num_events
        self.num_rows += other.num_rows
        self.num_unknown += other.num_unknown
        self.problems |= other.problems


class Ingester(OpenDatabase):
    """Loads event logs into SQLite or PostgreSQL; logs are only read, and may be growing.

        with Ingester("runs/statistics.sqlite") as ingester:
            ingester.ingest("runs/first/events.jsonl")     # or: ingester.watch("runs")

    Each batch of lines is one transaction together with the place in the log that it reaches: if a process
    is killed at any moment, nothing is lost or counted twice. Several processes may load at once. The
    database is created at first use.
    """

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        super().__init__(url, writes=True, wait_seconds=wait_seconds)
        self._tables = TableMaker(self._engine)
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def prepare(self) -> None:
        """Create the database's tables if they are missing; loading does this too."""
        self._tables.make()

    def ingest(self, log_path: str | os.PathLike[str]) -> IngestReport:
        """Load the events of a log that the database does not have yet.

        A line that is not an event is an `EventLogError`; the lines before it are loaded. A database that
        cannot be reached is a `DatabaseUnavailableError`.
        """
        report = IngestReport()
        self._load(Path(log_path), report)
        return report

    def _load(self, path: Path, report: IngestReport) -> None:
        """Load a log, and count in `report` what was loaded, also if it cannot be read to the end."""
        try:
            self.prepare()
            with database_errors(self._engine, "cannot write to"):
                self._ingest(path, report)
        except DatabaseUnavailableError:
            self._tables.forget()
            raise

    def ingest_folder(self, folder: str | os.PathLike[str]) -> IngestReport:
        """Load every log below a folder of runs, or one log; those that fail are in the report."""
        report = IngestReport()
        self.prepare()
        for path in logs_below(folder):
            try:
                about = path.stat()
                state = about.st_ino, about.st_size, about.st_mtime_ns
                if self._seen.get(path) != state:
                    self._load(path, report)
                    self._seen[path] = state
            except DatabaseUnavailableError:
                self._seen.clear()
                raise
            except (EventLogError, DatabaseError, OSError) as error:
                report.problems[str(path)] = str(error)
        return report

    def watch(
        self,
        folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        interval_seconds: float = 5.0,
        *,
        stop: threading.Event | None = None,
        on_round: Callable[[IngestReport], None] | None = None,
    ) -> IngestReport:
        """Load every log below a folder, or several, again and again until `stop` is set; returns the sum.

        After `stop` there is one last round. A database that cannot be reached is tried again after a
        pause of 0.5 s, doubled up to 30 s; warnings report when it is lost and when it is back.
        """
        total, stop = IngestReport(), stop or threading.Event()
        folders = [folder] if isinstance(folder, str | os.PathLike) else list(folder)
        warned: set[tuple[str, str]] = set()
        waits = pauses(*_PAUSE_SECONDS)
        is_away, is_last = False, False
        while not is_last:
            is_last = stop.is_set()
            try:
                report = IngestReport()
                for place in folders:
                    report.add(self.ingest_folder(place))
            except DatabaseUnavailableError as error:
                if not is_away:
                    _warn(f"{error}; it is tried again until it works")
                is_away = True
                stop.wait(next(waits))
                continue
            if is_away:
                is_away, waits = False, pauses(*_PAUSE_SECONDS)
                _warn(f"{self.url} can be reached again")
            for problem in report.problems.items() - warned:
                warned.add(problem)
                _warn(problem[1])
            total.add(report)
            if on_round is not None:
                on_round(report)
            if not is_last:
                stop.wait(interval_seconds)
        return total

    def forget_run(self, run: str) -> None:
        """Remove a run from the database; its log may be loaded again."""
        self.prepare()
        with database_errors(self._engine, "cannot write to"), self._engine.begin() as connection:
            _forget(connection, [run])
        self._seen.clear()

    def _ingest(self, path: Path, report: IngestReport) -> None:
        name_ids: dict[str, int] = {}
        with LogReader(path) as log:
            identity = log.identity()
            if identity is None:
                return
            mark = self._find_mark(log, identity)
            place = None if mark is None else _place_of(mark)
            while mark is not None and place is not None:
                batch = log.read(place)
                if batch.events:
                    done = self._write(log, mark, place, batch, name_ids)
                    if done is None:  # another process was faster: continue from there
                        mark = self._find_mark(log, identity)
                        place = None if mark is None else _place_of(mark)
                        continue
                    report.add(done)
                if batch.error is not None:
                    raise batch.error
                place = batch.end if batch.events else None

    def _find_mark(self, log: LogReader, identity: str) -> Row[Any] | None:
        """How far the log was read; None if it only lost its end since then."""
        path = str(log.path.absolute())
        new = {"digest": identity, "path": path, "bytes_read": 0, "lines_read": 0, "tail": ""}
        query = select(logs).where(logs.c.digest == identity).with_for_update()
        with self._engine.begin() as connection:
            mark = connection.execute(query).one_or_none()
            if mark is None:
                insert_absent(connection, logs, [new])
                mark = connection.execute(query).one()
            if mark.bytes_read == 0 or log.has(_place_of(mark)):
                return mark
            if log.size() < mark.bytes_read and _has_last_event(connection, log):
                return None
            # a loss of power removed lines that were loaded, and the run wrote others: the log counts
            _check_same_file(log, mark)
            of_log = select(events.c.run_id).where(events.c.log_id == mark.id)
            lost = select(runs.c.run).where(runs.c.id.in_(of_log))
            _forget(connection, list(connection.execute(lost).scalars()))
            connection.execute(update(logs).where(logs.c.id == mark.id).values(_NOTHING_READ))
            return connection.execute(query).one()

    def _write(
        self,
        log: LogReader,
        mark: Row[Any],
        place: Place,
        batch: LogBatch,
        name_ids: dict[str, int],
    ) -> IngestReport | None:
        """Write a batch, unless another process has loaded from `place` meanwhile."""
        unknown = names_in(batch.events) - name_ids.keys()
        if unknown:
            with self._engine.begin() as connection:
                name_ids.update(name_ids_of(connection, unknown))
        with self._engine.begin() as connection:
            query = select(logs).where(logs.c.id == mark.id).with_for_update()
            now = connection.execute(query).one_or_none()
            if now is None or _place_of(now) != place:
                return None
            counts = write_events(
                connection,
                batch.events,
                log_id=mark.id,
                name_ids=name_ids,
                unnamed=log.path.absolute().parent.name,
            )
            reached = {**vars(batch.end), "path": str(log.path.absolute())}
            connection.execute(update(logs).where(logs.c.id == mark.id).values(reached))
        return IngestReport(*counts)


def logs_below(place: str | os.PathLike[str]) -> list[Path]:
    """Event logs in a folder and all below it; a file counts as a log."""
    path = Path(place)
    return [path] if path.is_file() else sorted(path.rglob(_LOG_NAME))


_NOTHING_READ = {"bytes_read": 0, "lines_read": 0, "tail": ""}


def _place_of(mark: Row[Any]) -> Place:
    return Place(mark.bytes_read, mark.lines_read, mark.tail)


def _has_last_event(connection: Connection, log: LogReader) -> bool:
    """Whether the last event of the log is in the database, so that it only lacks later ones."""
    event = log.last_event()
    if event is None:
        return False
    query = select(events.c.time).join(runs, runs.c.id == events.c.run_id)
    query = query.where(runs.c.run == event.run, events.c.sequence == event.sequence)
    return bool(connection.execute(query).scalar() == event.time)


def _check_same_file(log: LogReader, mark: Row[Any]) -> None:
    """Refuse two copies of a log that differ: they would replace each other in the database."""
    known = Path(mark.path)
    if known.exists() and not known.samefile(log.path):
        raise DatabaseError(
            f"{str(log.path)!r} and {mark.path!r} begin alike and continue differently; the database has "
            "the second: remove one of them, or use another database"
        )


def _forget(connection: Connection, names: list[str]) -> None:
    """Remove all rows of runs, and let their logs be read again."""
    numbers = list(connection.execute(select(runs.c.id).where(runs.c.run.in_(names))).scalars())
    of_runs = select(events.c.log_id).where(events.c.run_id.in_(numbers))
    connection.execute(update(logs).where(logs.c.id.in_(of_runs)).values(_NOTHING_READ))
    for table in METADATA.tables.values():
        if "run_id" in table.c:
            connection.execute(delete(table).where(table.c.run_id.in_(numbers)))
    connection.execute(delete(runs).where(runs.c.id.in_(numbers)))


def _warn(text: str) -> None:
    warnings.warn(text, MettaWarning, stacklevel=3)
