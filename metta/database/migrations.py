"""From no database, or an old one, to the newest schema."""

import time
from collections.abc import Callable, Iterable

from sqlalchemy import Connection, Engine, inspect, select, text, update

from metta.database.connection import database_errors, shown, sqlite_path
from metta.database.schema import (
    METADATA,
    SCHEMA_VERSION,
    VIEWS,
    agent_values,
    replays,
    schema_version,
    simulation_episodes,
)
from metta.errors import DatabaseError
from metta.files import make_folders

__all__ = ["MIGRATIONS", "check_version", "migrate"]

_LOCK = 7_263_541
"""Names the lock that a migration takes in PostgreSQL."""
_VIEWS_OF_2 = ("metrics", "episode_metrics", "scores", "category_scores", "suite_scores")
_TRIES = 100
"""How often the write-ahead log is asked for while others hold the file."""


def migrate(engine: Engine) -> int:
    """Create the schema, or bring an old one up to date, in one transaction; returns its old version.

    Several processes may do so at once. A database newer than this code is a `DatabaseError`.
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
            before = _version_of(connection)
            _check(before, engine)
            if before == 0:
                METADATA.create_all(connection)
                _create_views(connection)
                connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))
            else:
                for version in range(before + 1, SCHEMA_VERSION + 1):
                    MIGRATIONS[version](connection)
                    connection.execute(update(schema_version).values(version=version))
    return before


def check_version(engine: Engine) -> None:
    """Make sure that the database can be read by this code; changes nothing."""
    file = sqlite_path(engine)
    if file is not None and not file.exists():
        raise DatabaseError(f"there is no database {str(file)!r}; ingest a log into it first")
    with database_errors(engine, "cannot read"), engine.connect() as connection:
        version = _version_of(connection)
    _check(version, engine)
    if version != SCHEMA_VERSION:
        found = f"has schema version {version}" if version else "holds no statistics"
        raise DatabaseError(
            f"{shown(engine.url)} {found}, this metta reads {SCHEMA_VERSION}; ingest a log into it first"
        )


def _check(version: int, engine: Engine) -> None:
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(engine.url)} has schema version {version}, this metta knows {SCHEMA_VERSION}; "
            "use a newer metta, or another database"
        )


def _version_of(connection: Connection) -> int:
    """Version of the database; 0 where there is none."""
    if not inspect(connection).has_table(schema_version.name):
        return 0
    found = connection.execute(select(schema_version.c.version)).scalar()
    return 0 if found is None else int(found)


def _use_write_ahead_log(engine: Engine) -> None:
    """Let readers read while one process writes; the file remembers it."""
    connection = engine.raw_connection()
    try:
        for attempt in range(_TRIES):
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL")
                return
            except engine.dialect.loaded_dbapi.OperationalError:
                # this one statement does not wait for others by itself
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.05)
    finally:
        connection.close()


def _create_views(connection: Connection, names: Iterable[str] = tuple(VIEWS)) -> None:
    quote = connection.dialect.identifier_preparer.quote
    for name in names:
        shape = VIEWS[name].compile(
            dialect=connection.dialect, compile_kwargs={"literal_binds": True}
        )
        connection.exec_driver_sql(f"CREATE VIEW {quote(name)} AS {shape}")


def _to_version_2(connection: Connection) -> None:
    """Runs count their starts, and views have names and scores for people."""
    connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN starts INTEGER DEFAULT 0 NOT NULL")
    connection.exec_driver_sql(
        "UPDATE runs SET starts = (SELECT count(*) FROM events "
        "WHERE events.run_id = runs.id AND events.kind = 'run_start')"
    )
    _create_views(connection, _VIEWS_OF_2)


def _to_version_3(connection: Connection) -> None:
    """Replays, episodes of evaluations and their agents have tables, for events from here on."""
    for table in (replays, simulation_episodes, agent_values):
        table.create(connection)
    _create_views(connection, ["agent_metrics"])


MIGRATIONS: dict[int, Callable[[Connection], None]] = {2: _to_version_2, 3: _to_version_3}
"""Version -> how a database of the version before becomes one. A fresh database is created at once in the
newest version; a test compares the two ways."""
