"""Writes the rows of events to the database, inside the caller's transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Double,
    Integer,
    Table,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from metta.database.connection import is_sqlite
from metta.database.event_rows import EventRows, Row
from metta.database.schema import METADATA, NAMED, REWOUND, events, metric_names, runs
from metta.errors import DatabaseError
from metta.loggers.events.plain_json import to_json

__all__ = ["insert_absent", "name_ids_of", "names_in", "write_events"]

_CHUNK = 500
"""Values per statement."""


def insert_absent(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows whose keys do not exist yet."""
    if rows:
        dialect: Any = sqlite if is_sqlite(connection) else postgresql
        connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def names_in(batch: Iterable[EventRows]) -> set[str]:
    """The names in the rows of these events."""
    return {
        row["name"]
        for event_rows in batch
        for table in NAMED
        for row in event_rows.rows.get(table, ())
    }


def name_ids_of(connection: Connection, names: Iterable[str]) -> dict[str, int]:
    """Ids of names; new names get one.

    In order, so that two processes that do so at once never deadlock.
    """
    wanted = sorted(names)
    found = _known_names(connection, wanted)
    insert_absent(connection, metric_names, [{"name": n} for n in wanted if n not in found])
    return found | _known_names(connection, [name for name in wanted if name not in found])


def _known_names(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for begin in range(0, len(names), _CHUNK):
        is_wanted = metric_names.c.name.in_(names[begin : begin + _CHUNK])
        query = select(metric_names.c.name, metric_names.c.id).where(is_wanted)
        found |= {row.name: row.id for row in connection.execute(query)}
    return found


def write_events(
    connection: Connection,
    batch: Sequence[EventRows],
    *,
    log_id: int,
    name_ids: Mapping[str, int],
    unnamed: str,
) -> tuple[int, int, int]:
    """Write what is new in a batch; returns how many events, rows of facts and events of unknown kinds.

    An event that the database has already, with the same time, is skipped; with another time it is a
    `DatabaseError`. Runs without a name get the name `unnamed`.
    """
    run_ids = _run_ids(connection, batch, unnamed)
    new = _new_events(connection, batch, run_ids)
    pending = _Pending(run_ids, name_ids)
    for event_rows in new:
        pending.add(event_rows, log_id)
    for run_id, kept in pending.rewinds.items():
        for table in REWOUND:
            is_later = (table.c.run_id == run_id) & (table.c.epoch > kept)
            connection.execute(delete(table).where(is_later))
    for name, rows in pending.rows.items():
        _insert(connection, METADATA.tables[name], rows)
    _update_runs(connection, new, run_ids)
    num_rows = sum(len(rows) for rows in pending.rows.values()) - len(new)
    return len(new), num_rows, sum(not found.is_known for found in new)


def _insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert many rows quickly: one statement per row would take most of the time."""
    if not rows:
        return
    columns = {column.name: _values(column, rows) for column in table.c}
    into = f"INSERT INTO {table.name} ({', '.join(columns)})"
    if is_sqlite(connection):
        marks = ", ".join("?" for _ in columns)
        tuples = list(zip(*columns.values(), strict=True))
        connection.exec_driver_sql(f"{into} VALUES ({marks})", tuples)
        return
    # one array per column: PostgreSQL takes them several times as fast as single rows
    kinds = [column.type.compile(dialect=connection.dialect) for column in table.c]
    arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
    values = tuple(_array(column, columns[column.name]) for column in table.c)
    connection.exec_driver_sql(f"{into} SELECT * FROM unnest({arrays})", values)


def _values(column: Column[Any], rows: Sequence[Row]) -> list[Any]:
    found = [row[column.name] for row in rows]
    if isinstance(column.type, JSON):
        return [None if value is None else to_json(value) for value in found]
    return found


def _array(column: Column[Any], values: list[Any]) -> list[Any] | str:
    """An array as PostgreSQL reads it; for numbers its text is quick to make."""
    if not isinstance(column.type, Integer | Double):
        return values
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def _run_ids(connection: Connection, batch: Sequence[EventRows], unnamed: str) -> dict[str, int]:
    """Ids of the runs in a batch, whose rows are locked until the transaction ends."""
    first = {found.event.run: found.event.time for found in reversed(batch)}
    new = {"name": unnamed, "attributes": {}, "starts": 0}
    rows = [{**new, "run": run, "last_event": time} for run, time in sorted(first.items())]
    insert_absent(connection, runs, rows)
    query = select(runs.c.run, runs.c.id).where(runs.c.run.in_(list(first))).order_by(runs.c.id)
    return {row.run: row.id for row in connection.execute(query.with_for_update())}


def _new_events(
    connection: Connection, batch: Sequence[EventRows], run_ids: Mapping[str, int]
) -> list[EventRows]:
    """The events that the database does not have."""
    sequences = [found.event.sequence for found in batch]
    query = select(events.c.run_id, events.c.sequence, events.c.time).where(
        events.c.run_id.in_(list(run_ids.values())),
        events.c.sequence.between(min(sequences), max(sequences)),
    )
    times = {(run, sequence): time for run, sequence, time in connection.execute(query)}
    new = []
    for found in batch:
        event = found.event
        known = times.setdefault(key := (run_ids[event.run], event.sequence), None)
        if known is None:
            times[key] = event.time
            new.append(found)
        elif known != event.time:
            raise DatabaseError(
                f"the database has another event {event.sequence} of run {event.run!r}; two logs must not "
                "have the same run: remove one of them, or take the run out of the database"
            )
    return new


class _Pending:
    """Rows that wait to be written, without those that a later event of the batch took back."""

    def __init__(self, run_ids: Mapping[str, int], name_ids: Mapping[str, int]) -> None:
        self.run_ids, self.name_ids = run_ids, name_ids
        self.rows: dict[str, list[Row]] = {name: [] for name in METADATA.tables}
        self.rewinds: dict[int, int] = {}

    def add(self, found: EventRows, log_id: int) -> None:
        event, run_id = found.event, self.run_ids[found.event.run]
        key = {"run_id": run_id, "sequence": event.sequence}
        if found.rewinds_to is not None:
            self._rewind(run_id, found.rewinds_to)
        about = {"log_id": log_id, "time": event.time, "kind": event.kind, "payload": found.payload}
        self.rows["events"].append({**key, **about})
        for table, rows in found.rows.items():
            target = self.rows[table]
            if table in NAMED:
                for row in rows:
                    row["name_id"] = self.name_ids[row.pop("name")]
            for row in rows:
                row.update(key)
            target.extend(rows)

    def _rewind(self, run_id: int, kept: int) -> None:
        self.rewinds[run_id] = min(kept, self.rewinds.get(run_id, kept))
        for table in REWOUND:
            self.rows[table.name] = [
                row
                for row in self.rows[table.name]
                if row["run_id"] != run_id or row["epoch"] is None or row["epoch"] <= kept
            ]


def _update_runs(
    connection: Connection, batch: Iterable[EventRows], run_ids: Mapping[str, int]
) -> None:
    """Update the runs to their status after the batch."""
    changes: dict[str, Row] = {}
    starts: dict[str, int] = {}
    first_starts: dict[str, float] = {}
    for found in batch:
        run = found.event.run
        changes.setdefault(run, {}).update(found.run)
        if found.event.kind == "run_start":
            starts[run] = starts.get(run, 0) + 1
            first_starts.setdefault(run, found.event.time)
    for run, values in changes.items():
        if run in starts:
            values["starts"] = runs.c.starts + starts[run]
            values["started"] = func.coalesce(runs.c.started, first_starts[run])
        connection.execute(update(runs).where(runs.c.id == run_ids[run]).values(values))
