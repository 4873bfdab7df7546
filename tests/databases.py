"""Databases for tests: SQLite files, and databases of a real PostgreSQL server."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.postgres_server import PostgresServer, binaries

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"metta_{next(_NUMBERS)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that does not exist yet, or has nothing in it, of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "database" / "statistics.sqlite")
    return str(request.getfixturevalue("postgres_url"))
