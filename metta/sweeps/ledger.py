"""`SweepLedger`: the log of each sweep, in the database in which its jobs are."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import Connection, select

from metta.database.creation import TableMaker, check_version
from metta.errors import ConfigError, DatabaseError, SweepError, did_you_mean
from metta.jobs.job import JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.tables import jobs as job_table
from metta.sweeps.definition import SweepDefinition
from metta.sweeps.tables import SWEEPS, sweep_events, sweeps
from metta.sweeps.trials import Event, EventKind
from metta.untrusted.json_files import parse_json

__all__ = ["SweepLedger"]

_MAX_JSON_VALUES = 5_000_000


class SweepLedger(JobLedger):
    """Jobs and sweeps: an event and the jobs that it asks for are written together or not at all.

    with SweepLedger("runs/stats.db") as ledger:
        ledger.begin(definition)
        ledger.append("first", [Event("ask", 1, {...})], sequence=0, jobs=[...])
        trials = Trials(ledger.events("first"))
    """

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        super().__init__(url, wait_seconds=wait_seconds)
        self._sweep_tables = TableMaker(self._engine, SWEEPS)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """As that of jobs; the tables of sweeps are there too."""
        try:
            self._sweep_tables.make()
        except DatabaseError:
            self._sweep_tables.forget()
            raise
        with super().transaction() as connection:
            yield connection

    def check(self) -> None:
        """Refuse a database that has no sweeps, without making it."""
        check_version(self._engine, SWEEPS)

    def begin(self, definition: SweepDefinition) -> None:
        """Enter a new sweep; `ConfigError` if there is one of its name."""
        row = {
            "name": definition.name,
            "definition": json.dumps(definition.to_dict()),
            "created": time.time(),
        }
        with self.transaction() as connection:
            if self._find(connection, definition.name) is not None:
                raise ConfigError(
                    f"{self.url} has a sweep {definition.name!r} already; choose another name with --name, "
                    f"or continue it: metta sweep resume {definition.name}"
                )
            connection.execute(sweeps.insert().values(**row))

    def set_trials(self, definition: SweepDefinition, trials: int) -> SweepDefinition:
        """Give a sweep another number of trials; what was tried stays."""
        changed = definition.with_trials(trials)
        text = json.dumps(changed.to_dict())
        change = sweeps.update().where(sweeps.c.name == definition.name).values(definition=text)
        with self.transaction() as connection:
            connection.execute(change)
        return changed

    def remove(self, definition: SweepDefinition) -> None:
        """Remove a sweep, its events and its jobs, all at once; its runs are files, and stay."""
        of_name = select(sweeps.c.id).where(sweeps.c.name == definition.name).scalar_subquery()
        with self.transaction() as connection:
            connection.execute(job_table.delete().where(job_table.c.job_group == definition.group))
            connection.execute(sweep_events.delete().where(sweep_events.c.sweep == of_name))
            connection.execute(sweeps.delete().where(sweeps.c.name == definition.name))

    def names(self) -> list[str]:
        """Names of all sweeps, oldest first."""
        with self.transaction() as connection:
            return list(connection.execute(select(sweeps.c.name).order_by(sweeps.c.id)).scalars())

    def definition(self, name: str) -> SweepDefinition:
        """What a sweep is; `ConfigError` if there is none of this name."""
        with self.transaction() as connection:
            row = self._find(connection, name)
        if row is None:
            known = self.names()
            raise ConfigError(
                f"{self.url} has no sweep {name!r}{did_you_mean(name, known)}; `metta sweep status` lists "
                "them, and --database names another database"
            )
        try:
            found = SweepDefinition.from_dict(_data(row["definition"], name))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _foreign(name, f"{type(error).__name__}: {error}") from error
        if found.name != name:
            raise _foreign(name, f"it is the definition of {found.name!r}")
        return found

    def events(self, name: str) -> list[Event]:
        """Everything that happened in a sweep, in order."""
        columns = sweep_events.c
        query = select(columns.kind, columns.trial, columns.payload, columns.time)
        query = query.join(sweeps, sweeps.c.id == columns.sweep).where(sweeps.c.name == name)
        with self.transaction() as connection:
            rows = connection.execute(query.order_by(columns.sequence)).all()
        return [
            Event(cast(EventKind, kind), trial, _data(payload, name), moment)
            for kind, trial, payload, moment in rows
        ]

    def append(
        self, name: str, events: Sequence[Event], *, sequence: int, jobs: Sequence[JobSpec] = ()
    ) -> None:
        """Write events as numbers `sequence` and following, and post jobs, or neither.

        `SweepError` if the sweep has an event of such a number: another process is at work on it.
        """
        with self.transaction() as connection:
            row = self._find(connection, name)
            assert row is not None, "events are appended to a sweep that has begun"
            rows = [
                _row_of(event, row["id"], sequence + place) for place, event in enumerate(events)
            ]
            later = (sweep_events.c.sweep == row["id"]) & (sweep_events.c.sequence >= sequence)
            query = select(sweep_events).where(later).order_by(sweep_events.c.sequence)
            stored = [dict(one) for one in connection.execute(query).mappings()]
            if stored == rows:
                return  # written just before the database went away
            if stored:
                raise SweepError(
                    f"another process has continued the sweep {name!r} meanwhile, perhaps on another "
                    "machine; let one of them do it"
                )
            connection.execute(sweep_events.insert(), rows)
            self.post(jobs, connection)

    @staticmethod
    def _find(connection: Connection, name: str) -> Any:
        query = select(sweeps).where(sweeps.c.name == name)
        return connection.execute(query).mappings().first()


def _row_of(event: Event, sweep: int, sequence: int) -> dict[str, Any]:
    return {
        "sweep": sweep,
        "sequence": sequence,
        "kind": event.kind,
        "trial": event.trial,
        "payload": json.dumps(dict(event.payload)),
        "time": event.time,
    }


def _data(text: str, name: str) -> dict[str, Any]:
    """What a column holds; other programs may write to the database as well."""
    try:
        found = parse_json(text, max_values=_MAX_JSON_VALUES)
        if isinstance(found, dict):
            return found
        reason = "it is not a mapping"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise _foreign(name, reason)


def _foreign(name: str, reason: str) -> DatabaseError:
    return DatabaseError(f"the sweep {name!r} holds data that metta did not write: {reason}")
