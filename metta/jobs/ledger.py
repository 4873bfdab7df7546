"""`JobLedger`: who does which job, and what came of it."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    RowMapping,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from metta.database.connection import OpenDatabase, database_errors, is_sqlite
from metta.database.creation import TableMaker
from metta.errors import ConfigError, DatabaseError, DatabaseUnavailableError
from metta.jobs.job import OPEN_STATES, Job, JobRecord, JobSpec
from metta.jobs.tables import JOBS, jobs
from metta.secrets import scrub_all
from metta.untrusted.json_files import parse_json

__all__ = ["JobLedger"]

_MAX_JSON_VALUES = 5_000_000
_MAX_PARTS = 500
"""Values in one SQL statement."""
_WRONG = re.compile(
    "authentication failed|does not exist|no pg_hba.conf entry|unable to open database file"
)
"""What a database says that will not get better by waiting."""


class JobLedger(OpenDatabase):
    """Jobs in SQLite or PostgreSQL: each is done, and its result taken, once.

        with JobLedger("runs/stats.db") as ledger:
            ledger.post([JobSpec("evaluate", key="first-120", group="evaluation", payload={...})])
            job = ledger.take("worker-1", lease_seconds=30.0)
            ledger.renew(job, 30.0)               # every few seconds, while it is being done
            ledger.finish(job, {"score": 500.0})
            [record] = ledger.records(group="evaluation")

    A worker holds a job until its lease ends. Then another worker may take it, which makes the first
    one's attempt worthless: `finish`, `fail` and `renew` of that attempt return False. All times are those
    of the database. Every call is one transaction; if the database is away it raises
    `DatabaseUnavailableError`, and may be made again.
    """

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        super().__init__(url, writes=True, wait_seconds=wait_seconds)
        self._tables = TableMaker(self._engine, JOBS)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection for writes that stand or fall together, with `post` among them."""
        try:
            self._tables.make()
            with database_errors(self._engine, "cannot use"), self._engine.begin() as connection:
                yield connection
        except DatabaseUnavailableError:
            self._tables.forget()
            raise

    def require_usable(self) -> None:
        """Refuse an address that is wrong; a database that is merely away is not."""
        try:
            with self.transaction():
                pass
        except DatabaseUnavailableError as error:
            if _WRONG.search(str(error)):
                raise ConfigError(
                    f"{error}; give the address of a database that may be used: --database, "
                    "evaluation.database or METTA_STATS_URL"
                ) from error

    def post(self, specs: Iterable[JobSpec], connection: Connection | None = None) -> int:
        """Ask for jobs; returns how many of them the database did not have yet."""
        rows = [_row_of(spec) for spec in specs]
        if connection is None:
            with self.transaction() as own:
                return _insert(own, rows)
        return _insert(connection, rows)

    def take(
        self,
        worker: str,
        *,
        lease_seconds: float,
        kinds: Collection[str] = (),
        groups: Collection[str] = (),
        besides: Collection[int] = (),
    ) -> Job | None:
        """The next job that waits, or whose worker let its lease end; None if there is none.

        Without `kinds` and `groups` it may be any `besides` those with these ids. A job whose last
        attempt's lease ended has failed.
        """
        wanted: list[ColumnElement[bool]] = []
        if kinds:
            wanted.append(jobs.c.kind.in_(list(kinds)))
        if groups:
            wanted.append(jobs.c.job_group.in_(list(groups)))
        if besides:
            wanted.append(jobs.c.id.not_in(list(besides)))
        with self.transaction() as connection:
            now = _now(connection)
            is_lost = (jobs.c.state == "held") & (jobs.c.lease_ends < now)
            query = select(jobs).where((jobs.c.state == "waiting") | is_lost, *wanted)
            query = query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(1)
            while True:
                row = connection.execute(query.with_for_update(skip_locked=True)).mappings().first()
                if row is None:
                    return None
                if row["state"] == "held" and row["attempt"] >= row["max_attempts"]:
                    error = f"its worker ended, or lost the database, {row['attempt']} times"
                else:
                    try:
                        return _hold(connection, row, worker, now + lease_seconds)
                    except DatabaseError as unusable:  # it must not stop the others
                        error = str(unusable)
                _end(connection, jobs.c.id == row["id"], state="failed", error=error)

    def renew(self, job: Job, lease_seconds: float) -> bool:
        """Hold a job for longer; False if it is not this attempt's any more, or was cancelled."""
        with self.transaction() as connection:
            return _change(connection, job, lease_ends=_now(connection) + lease_seconds)

    def finish(self, job: Job, result: Mapping[str, Any]) -> bool:
        """Give the result; False if it is not taken: the job is another attempt's, or was cancelled."""
        text = json.dumps(dict(result))
        with self.transaction() as connection:
            return _end(connection, _is_held(job), state="done", result=text, error=None)

    def fail(self, job: Job, error: str, *, is_final: bool = False) -> bool:
        """It failed: another attempt follows, unless there were `max_attempts`, or this `is_final`."""
        error = error.replace("\0", "").encode(errors="replace").decode()  # databases refuse others
        with self.transaction() as connection:
            again = () if is_final else (jobs.c.attempt < jobs.c.max_attempts,)
            if again and _change(connection, job, *again, **_WAITING, error=error):
                return True
            return _end(connection, _is_held(job), state="failed", error=error)

    def give_back(self, job: Job) -> bool:
        """The worker stops before it is done: another may take the job, and this attempt does not count."""
        with self.transaction() as connection:
            return _change(connection, job, **_WAITING, attempt=jobs.c.attempt - 1)

    def abandon(self, worker: str) -> int:
        """A worker is known to have died: its leases end now. Returns how many it held."""
        is_its = (jobs.c.state == "held") & (jobs.c.worker == worker)
        with self.transaction() as connection:
            change = update(jobs).where(is_its).values(lease_ends=0.0)
            return connection.execute(change).rowcount

    def holders(self) -> set[str]:
        """The workers that hold jobs."""
        query = select(jobs.c.worker).where(jobs.c.state == "held").distinct()
        with self.transaction() as connection:
            return set(connection.execute(query).scalars())

    def cancel(self, *, group: str | None = None, keys: Collection[str] | None = None) -> int:
        """Cancel jobs that have not ended: of a group, or with these keys, or all.

        Who does one notices at the next `renew`.
        """
        with self.transaction() as connection:
            return sum(
                _end_all(connection, jobs.c.state.in_(OPEN_STATES), *chosen, state="cancelled")
                for chosen in _chosen(group, keys)
            )

    def records(
        self,
        *,
        group: str | None = None,
        keys: Collection[str] | None = None,
        states: Collection[str] = (),
    ) -> list[JobRecord]:
        """How jobs stand, in the order in which they were posted; without arguments all of them."""
        is_wanted = [jobs.c.state.in_(list(states))] if states else []
        found: list[JobRecord] = []
        with self.transaction() as connection:
            for chosen in _chosen(group, keys):
                query = select(jobs).where(*is_wanted, *chosen).order_by(jobs.c.id)
                found += [_record_of(row) for row in connection.execute(query).mappings()]
        return sorted(found, key=lambda record: record.id)


_WAITING = {"state": "waiting", "lease_ends": None}


def _row_of(spec: JobSpec) -> dict[str, Any]:
    if spec.max_attempts < 1:
        raise ConfigError(f"max_attempts={spec.max_attempts} of job {spec.key!r}; give 1 or more")
    payload = json.dumps(dict(spec.payload))
    if json.dumps(scrub_all(dict(spec.payload))) != payload:
        raise ConfigError(
            f"the job {spec.key!r} holds what looks like a secret, and others can read the database; give "
            "it as env:NAME, and set that variable where workers run"
        )
    return {
        "key": spec.key,
        "kind": spec.kind,
        "job_group": spec.group,
        "payload": payload,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "state": "waiting",
        "attempt": 0,
    }


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> int:
    dialect: Any = sqlite if is_sqlite(connection) else postgresql
    num_new = 0
    for row in rows:
        insert = dialect.insert(jobs).values(**row, posted=_now(connection))
        new = connection.execute(insert.on_conflict_do_nothing().returning(jobs.c.id))
        num_new += len(new.all())
    return num_new


def _now(connection: Connection) -> ColumnElement[float]:
    """Seconds since 1970, by the clock of the database."""
    if is_sqlite(connection):
        text = "((julianday('now') - 2440587.5) * 86400.0)"
    else:
        text = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
    return literal_column(text, Double)


def _hold(connection: Connection, row: RowMapping, worker: str, until: ColumnElement[float]) -> Job:
    payload, attempt = _data(row["payload"], row["key"]), row["attempt"] + 1
    values = {"state": "held", "attempt": attempt, "worker": worker, "lease_ends": until}
    change = update(jobs).where(jobs.c.id == row["id"])
    connection.execute(change.values(**values, started=_now(connection)))
    return Job(row["id"], row["kind"], row["key"], row["job_group"], payload, attempt, worker)


def _is_held(job: Job) -> ColumnElement[bool]:
    """Whether a job is still in the hands of this attempt."""
    own = (jobs.c.id == job.id) & (jobs.c.attempt == job.attempt) & (jobs.c.worker == job.worker)
    return own & (jobs.c.state == "held")


def _change(
    connection: Connection, job: Job, *conditions: ColumnElement[bool], **values: Any
) -> bool:
    change = update(jobs).where(_is_held(job), *conditions).values(**values)
    return connection.execute(change).rowcount == 1


def _end(connection: Connection, condition: ColumnElement[bool], **values: Any) -> bool:
    return _end_all(connection, condition, **values) == 1


def _end_all(connection: Connection, *conditions: ColumnElement[bool], **values: Any) -> int:
    change = update(jobs).where(*conditions)
    change = change.values(lease_ends=None, ended=_now(connection), **values)
    return connection.execute(change).rowcount


def _chosen(group: str | None, keys: Collection[str] | None) -> Iterator[list[ColumnElement[bool]]]:
    """Conditions that together choose the jobs of a group, or those of `keys` in it."""
    own = [] if group is None else [jobs.c.job_group == group]
    if keys is None:
        yield own
        return
    ordered = list(dict.fromkeys(keys))
    for begin in range(0, len(ordered), _MAX_PARTS):
        yield [*own, jobs.c.key.in_(ordered[begin : begin + _MAX_PARTS])]


def _record_of(row: RowMapping) -> JobRecord:
    result = None if row["result"] is None else _data(row["result"], row["key"])
    return JobRecord(
        id=row["id"],
        kind=row["kind"],
        key=row["key"],
        group=row["job_group"],
        payload=_data(row["payload"], row["key"]),
        state=row["state"],
        attempt=row["attempt"],
        worker=row["worker"],
        result=result,
        error=row["error"],
        posted=row["posted"],
        started=row["started"],
        ended=row["ended"],
    )


def _data(text: str, key: str) -> dict[str, Any]:
    """What a payload or result holds; other programs may write to the database as well."""
    try:
        found = parse_json(text, max_values=_MAX_JSON_VALUES, allow_nan=True)
        if isinstance(found, dict):
            return found
        reason = "it is not a mapping"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise DatabaseError(f"the job {key!r} holds data that metta did not write: {reason}")
