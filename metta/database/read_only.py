"""Users' SQL, which may read everything and change nothing."""

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
_CURSOR = "metta_query"


@dataclass(frozen=True)
class QueryResult:
    """What a query found."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool
    """Whether there are more rows than were asked for."""


def run_query(connection: Connection, statement: str, *, limit: int = 1000) -> QueryResult:
    """The first `limit` rows that one statement returns, on a connection of `StatsReader.connect`.

        with StatsReader(url) as reader, reader.connect() as connection:
            print(run_query(connection, "SELECT name, outcome FROM runs").rows)

    A statement that would change something is a `DatabaseError`. SQLite is opened for reading, and other
    actions are denied. PostgreSQL runs the statement in a read-only transaction as a cursor on the server:
    it can be SELECT, WITH, VALUES or TABLE, but not COPY, which could start programs, nor EXPLAIN or SHOW,
    nor several statements. The server computes only the rows that are fetched. Some functions of
    PostgreSQL act at once, such as `pg_terminate_backend`: only the user's rights limit them.
    """
    if limit < 1:
        raise ConfigError(f"limit={limit} must be 1 or more")
    driver: Any = connection.connection.driver_connection
    errors = connection.dialect.loaded_dbapi
    # with a name it is a cursor on the server: DECLARE ... CURSOR FOR takes one query and no COPY
    name = () if is_sqlite(connection) else (_CURSOR,)
    with _only_reading(connection, driver):
        cursor = driver.cursor(*name)
        try:
            cursor.execute(statement)
            if cursor.description is None:
                raise DatabaseError("the statement returns no rows; use SELECT ...")
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
