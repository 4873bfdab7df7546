"""Addresses of databases, and connections to them."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from metta.errors import ConfigError, DatabaseError, DatabaseUnavailableError, MissingExtraError
from metta.loggers.events.plain_json import to_json
from metta.secrets import resolve, scrub

__all__ = [
    "OpenDatabase",
    "database_errors",
    "database_url",
    "is_sqlite",
    "open_engine",
    "shown",
    "sqlite_path",
]

_CONNECT_SECONDS = 10
_SIGNS_OF_LIFE = {
    "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000,
}  # fmt: skip
"""A server that vanishes without a word is noticed after a minute, not after two hours."""
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")
_NOT_A_PATH = re.compile(r"(?:^|\s)\w+\s*=|^[\w+.-]*:|:[^/]*@")
"""``host=... password=...``, ``scheme:...`` or ``user:password@...``"""


def database_url(url: str) -> URL:
    """The address that a text means: a URL, the path of a SQLite file, or ``env:NAME`` for either.

    The password may be a reference too: ``postgresql://metta:env:DATABASE_PASSWORD@host/metta``. Whatever
    is neither may hold a password, so the `ConfigError` does not repeat it.
    """
    text = str(resolve(url))
    if "://" not in text:
        return URL.create("sqlite", database=_file_name(text))
    try:
        parsed = make_url(text)
    except (exc.ArgumentError, ValueError):
        # not chained: the text is in that error
        raise ConfigError(
            "the address of the database has '://' in it, but is not a URL; "
            "write postgresql://user:env:NAME@host/database"
        ) from None
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise ConfigError(f"a database of kind {kind!r} is not supported; use sqlite or postgresql")
    if "@" in (parsed.host or ""):
        raise ConfigError(
            "the user or password in the address of the database has an '@' in it; write %40 instead, "
            "or name a variable that holds the password: env:NAME"
        )
    if parsed.password is not None:
        parsed = parsed.set(password=resolve(str(parsed.password)))
    query = {name: resolve(value) for name, value in parsed.query.items()}
    driver = "sqlite" if kind == "sqlite" else "postgresql+psycopg"
    return parsed.set(drivername=driver, query=query)


def _file_name(text: str) -> str:
    """The path, if the text cannot be anything else."""
    if not text:
        raise ConfigError("the database has no name; give a path or a URL")
    if text == ":memory:":
        raise ConfigError("a database in memory is gone at the end; give the path of a file")
    if not text.startswith(("/", "./", "../")) and _NOT_A_PATH.search(text):
        raise ConfigError(
            "the address of the database (not repeated here, since it may hold a password) reads like "
            "connection parameters or a URL without '//', not like the path of a SQLite file; write "
            "postgresql://user:env:NAME@host/database for a server, or begin a path with ./ or /"
        )
    if not text.endswith(_FILE_ENDINGS) and not Path(text).is_file():
        raise ConfigError(
            "the address of the database (not repeated here, since it may hold a password) is not a URL, "
            f"and no SQLite file of that name exists; a new one ends in {', '.join(_FILE_ENDINGS)}"
        )
    return text


def shown(url: URL) -> str:
    """The address without the password, for messages."""
    return scrub(url.render_as_string(hide_password=True))


class OpenDatabase:
    """Holds connections to a database; close it, or use it with `with`."""

    def __init__(self, url: str, *, writes: bool, wait_seconds: float) -> None:
        self._engine = open_engine(url, writes=writes, wait_seconds=wait_seconds)

    @property
    def url(self) -> str:
        """The database's address, without its password."""
        return shown(self._engine.url)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_sqlite(bind: Engine | Connection) -> bool:
    """Whether this is a SQLite file."""
    return bind.dialect.name == "sqlite"


def open_engine(url: str, *, writes: bool, wait_seconds: float = 30.0) -> Engine:
    """An engine for a database that need not exist yet; the caller disposes of it.

    With `writes`, each transaction takes SQLite's write lock as it begins, so that none fails halfway;
    it waits up to `wait_seconds` for others. Without, the database is read-only.
    """
    address = database_url(url)
    options: dict[str, Any] = {"json_serializer": to_json, "hide_parameters": True}
    if address.get_backend_name() == "sqlite":
        if address.database in (None, "", ":memory:"):
            raise ConfigError("a database in memory is gone at the end; give the path of a file")
        options["connect_args"] = {"timeout": wait_seconds}
        if not writes:
            options["creator"] = _read_only(Path(str(address.database)), wait_seconds)
    else:
        options["connect_args"] = {"connect_timeout": _CONNECT_SECONDS, **_SIGNS_OF_LIFE}
        options["pool_pre_ping"] = True
        if not writes:  # all answers of one connection are from one snapshot
            options["isolation_level"] = "REPEATABLE READ"
            options["execution_options"] = {"postgresql_readonly": True}
    try:
        engine = create_engine(address, **options)
    except ModuleNotFoundError as error:
        raise MissingExtraError("psycopg", "postgres", "a PostgreSQL database") from error
    if is_sqlite(engine):
        _prepare_sqlite(engine, "BEGIN IMMEDIATE" if writes else "BEGIN")
    return engine


def _read_only(file: Path, wait_seconds: float) -> Callable[[], sqlite3.Connection]:
    """A function that opens an existing SQLite file for reading only."""

    def connect() -> sqlite3.Connection:
        address = f"{file.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(address, uri=True, timeout=wait_seconds, check_same_thread=False)

    return connect


def _prepare_sqlite(engine: Engine, begin: str) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the next function begins transactions
        # a lost last transaction would be loaded again from the log, so waiting for the disk at each
        # checkpoint of the write-ahead log is enough
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def sqlite_path(engine: Engine) -> Path | None:
    """The file of a SQLite database; None for a server."""
    return Path(str(engine.url.database)) if is_sqlite(engine) else None


@contextmanager
def database_errors(engine: Engine, purpose: str) -> Iterator[None]:
    """Raise a database's failures as metta's errors, without secrets."""
    try:
        yield
    except exc.DBAPIError as error:
        reason = scrub(" ".join(str(error.orig).split()))
        about = f"{purpose} {shown(engine.url)}: {reason}"
        is_away = isinstance(error, exc.OperationalError | exc.InterfaceError)
        if is_away or error.connection_invalidated:  # some drivers use another class
            raise DatabaseUnavailableError(about) from error
        raise DatabaseError(about) from error
    except sqlite3.OperationalError as error:  # of a connection without SQLAlchemy's wrapping
        raise DatabaseUnavailableError(f"{purpose} {shown(engine.url)}: {error}") from error
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise DatabaseError(f"{purpose} {shown(engine.url)}: {scrub(str(error))}") from error
