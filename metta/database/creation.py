"""Creating the tables of a database, and checking their version.

There is no migration: everything in the database comes from event logs, which can be loaded into a new one.
"""

import time

from sqlalchemy import Connection, Engine, inspect, select, text

from metta.database.connection import database_errors, shown, sqlite_path
from metta.database.schema import METADATA, SCHEMA_VERSION, VIEWS, schema_version
from metta.errors import DatabaseError
from metta.files import make_folders

__all__ = ["check_version", "create_tables"]

_LOCK = 7_263_541
"""The id of the PostgreSQL lock that is held meanwhile."""
_TRIES = 100
"""How often to ask for the write-ahead log while other processes hold the file."""


def create_tables(engine: Engine) -> None:
    """Create tables and views if they are missing, in one transaction.

    Several processes may do so at once. A database of another version is a `DatabaseError`.
    """
    file = sqlite_path(engine)
    if file is not None:
        make_folders(file.parent)
    with database_errors(engine, "cannot prepare"):
        if file is not None:
            _use_write_ahead_log(engine)
        with engine.begin() as connection:
            if file is None:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            version = _version_of(connection)
            if version is not None:
                _check(version, engine)
                return
            METADATA.create_all(connection)
            _create_views(connection)
            connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))


def check_version(engine: Engine) -> None:
    """Make sure that the database can be read by this code; changes nothing."""
    file = sqlite_path(engine)
    if file is not None and not file.exists():
        raise DatabaseError(f"there is no database {str(file)!r}; ingest a log into it first")
    with database_errors(engine, "cannot read"), engine.connect() as connection:
        version = _version_of(connection)
    if version is None:
        raise DatabaseError(f"{shown(engine.url)} holds no statistics; ingest a log into it first")
    _check(version, engine)


def _check(version: int, engine: Engine) -> None:
    if version != SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(engine.url)} has schema version {version}, this metta uses {SCHEMA_VERSION}; ingest "
            "the event logs into a new database"
        )


def _version_of(connection: Connection) -> int | None:
    """Version of the database; None if it has no tables."""
    if not inspect(connection).has_table(schema_version.name):
        return None
    return connection.execute(select(schema_version.c.version)).scalar()


def _use_write_ahead_log(engine: Engine) -> None:
    """Let readers read while one process writes; SQLite stores this in the file."""
    connection = engine.raw_connection()
    try:
        for attempt in range(_TRIES):
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL")
                return
            except engine.dialect.loaded_dbapi.OperationalError:
                # SQLite does not wait for other processes in this one statement
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.05)
    finally:
        connection.close()


def _create_views(connection: Connection) -> None:
    quote = connection.dialect.identifier_preparer.quote
    for name, query in VIEWS.items():
        shape = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        connection.exec_driver_sql(f"CREATE VIEW {quote(name)} AS {shape}")
