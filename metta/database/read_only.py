"""SQL of people, which may look at everything and change nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from metta.database.connection import is_sqlite
from metta.errors import ConfigError, DatabaseError
from metta.secrets import scrub

__all__ = ["QueryResult", "run_query"]

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


@dataclass(frozen=True)
class QueryResult:
    """What a query found."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool
    """Whether there are more rows than were asked for."""


def run_query(connection: Connection, statement: str, *, limit: int = 1000) -> QueryResult:
    """The first `limit` rows that one statement gives, on a connection of `StatsReader.connect`.

        with StatsReader(url) as reader, reader.connect() as connection:
            print(run_query(connection, "SELECT name, outcome FROM runs").rows)

    Whatever would change something is a `DatabaseError`: SQLite is opened for reading and asked for
    nothing else, PostgreSQL is in a read-only transaction, which a second statement cannot leave.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit} must be 1 or more")
    driver: Any = connection.connection.driver_connection
    errors = connection.dialect.loaded_dbapi
    # PostgreSQL prepares single statements only, so none can end the transaction for the next
    options = {} if is_sqlite(connection) else {"prepare": True}
    with _only_reading(connection, driver):
        cursor = driver.cursor()
        try:
            cursor.execute(statement, **options)
            if cursor.description is None:
                raise DatabaseError("the statement gives no rows; ask with SELECT ...")
            rows = [tuple(row) for row in cursor.fetchmany(limit + 1)]
            columns = [about[0] for about in cursor.description]
        except (errors.Error, sqlite3.Warning) as error:
            reason = scrub(" ".join(str(error).split()))
            raise DatabaseError(f"the query cannot be answered: {reason}") from error
        finally:
            cursor.close()
    return QueryResult(columns, rows[:limit], len(rows) > limit)


@contextmanager
def _only_reading(connection: Connection, driver: Any) -> Iterator[None]:
    """A file opened for reading could still attach another one, and create it."""
    if not is_sqlite(connection):
        yield
        return
    driver.set_authorizer(_permit)
    try:
        yield
    finally:
        driver.set_authorizer(None)


def _permit(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
