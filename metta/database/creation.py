"""Creating the tables of a database, and checking their version.

A database may hold several sets of tables, each with its own version. There is no migration: statistics
come from event logs, which can be loaded into a new database, and a job that is done is not needed again.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Select, Table, inspect, select, text

from metta.database.connection import database_errors, shown, sqlite_path
from metta.database.schema import METADATA, SCHEMA_VERSION, VIEWS, schema_version
from metta.errors import ConfigError, DatabaseError
from metta.files import make_folders

__all__ = ["STATISTICS", "TableMaker", "TableSet", "check_version", "create_tables"]


@dataclass(frozen=True)
class TableSet:
    """Tables that belong together, and their version."""

    name: str
    """What they hold, for messages."""
    metadata: MetaData
    version_table: Table
    """One of the tables, with one row and the column `version`."""
    version: int
    """What this code reads and writes."""
    if_missing: str
    """What to do if a database has none of them."""
    if_other: str
    """What to do if a database has another version of them."""
    views: Mapping[str, Select[Any]] = field(default_factory=dict)


STATISTICS = TableSet(
    name="statistics",
    metadata=METADATA,
    version_table=schema_version,
    version=SCHEMA_VERSION,
    if_missing="ingest a log into it first",
    if_other="ingest the event logs into a new database",
    views=VIEWS,
)

_LOCK = 7_263_541
"""The id of the PostgreSQL lock that is held meanwhile."""
_TRIES = 100
"""How often to ask for the write-ahead log while other processes hold the file."""


class TableMaker:
    """Creates a database's tables when they are first needed, and again if its file was replaced."""

    def __init__(self, engine: Engine, tables: TableSet = STATISTICS) -> None:
        self._engine, self._tables = engine, tables
        self._ready: tuple[int, int] | None = None
        """Which database has its tables."""

    def make(self) -> None:
        """Create the tables if they are missing; quick if they are known to be there."""
        if self._ready is None or self._ready != self._identity():
            self._engine.dispose()
            create_tables(self._engine, self._tables)
            self._ready = self._identity()

    def forget(self) -> None:
        """The database was away: when it can be reached again, it may be another one."""
        self._ready = None

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of a SQLite file, None if it is missing; zeros for a server."""
        file = sqlite_path(self._engine)
        if file is None:
            return 0, 0
        try:
            about = file.stat()
        except OSError:
            return None
        return about.st_dev, about.st_ino


def create_tables(engine: Engine, tables: TableSet = STATISTICS) -> None:
    """Create tables and views if they are missing, in one transaction.

    Several processes may do so at once. A database of another version is a `DatabaseError`.
    """
    file = sqlite_path(engine)
    if file is not None:
        _make_folder_of(file)
    with database_errors(engine, "cannot prepare"):
        if file is not None:
            _use_write_ahead_log(engine)
        with engine.begin() as connection:
            if file is None:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            version = _version_of(connection, tables)
            if version is not None:
                _check(version, engine, tables)
                return
            tables.metadata.create_all(connection)
            _create_views(connection, tables)
            connection.execute(tables.version_table.insert().values(version=tables.version))


def _make_folder_of(file: Path) -> None:
    """Refuse what SQLite could only call unable to open, as it does where a disk is away."""
    try:
        make_folders(file.parent)
        why = "" if file.parent.is_dir() else f"{str(file.parent)!r} is not a folder"
    except OSError as error:
        why = str(error.strerror)
    if not why and file.is_dir():
        why = "it is a folder"
    if not why and not os.access(file if file.exists() else file.parent, os.W_OK):
        why = "you may not write there"
    if why:
        raise ConfigError(
            f"the database {str(file)!r} cannot be used: {why}; choose another address, or another folder "
            "of runs"
        )


def check_version(
    engine: Engine, tables: TableSet = STATISTICS, *, may_be_missing: bool = False
) -> None:
    """Make sure that the database can be read by this code; changes nothing."""
    file = sqlite_path(engine)
    if file is not None and not file.exists():
        raise DatabaseError(f"there is no database {str(file)!r}; {tables.if_missing}")
    with database_errors(engine, "cannot read"), engine.connect() as connection:
        version = _version_of(connection, tables)
    if version is not None:
        _check(version, engine, tables)
    elif not may_be_missing:
        raise DatabaseError(f"{shown(engine.url)} holds no {tables.name}; {tables.if_missing}")


def _check(version: int, engine: Engine, tables: TableSet) -> None:
    if version != tables.version:
        raise DatabaseError(
            f"{shown(engine.url)} has {tables.name} of schema version {version}, this metta uses "
            f"{tables.version}; {tables.if_other}"
        )


def _version_of(connection: Connection, tables: TableSet) -> int | None:
    """Version of the tables; None if there are none."""
    if not inspect(connection).has_table(tables.version_table.name):
        return None
    return connection.execute(select(tables.version_table.c.version)).scalar()


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


def _create_views(connection: Connection, tables: TableSet) -> None:
    quote = connection.dialect.identifier_preparer.quote
    for name, query in tables.views.items():
        shape = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        connection.exec_driver_sql(f"CREATE VIEW {quote(name)} AS {shape}")
