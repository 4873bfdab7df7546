"""SQL of people changes nothing, whatever it says."""

from pathlib import Path

import pytest
from event_logs import dump, write_run
from sqlalchemy.exc import DBAPIError

from benchmarks.postgres_server import PostgresServer
from metta.database import Ingester, StatsReader, run_query
from metta.database.connection import OpenDatabase, open_engine
from metta.errors import ConfigError, DatabaseError


@pytest.fixture
def filled(ingester: Ingester, reader: StatsReader, tmp_path: Path) -> StatsReader:
    write_run(tmp_path / "runs" / "events.jsonl", 4, run_id="r")
    ingester.ingest_folder(tmp_path / "runs")
    return reader


def test_rows_and_columns_are_given_when_they_are_asked_for(filled: StatsReader) -> None:
    with filled.connect() as connection:
        sql = "SELECT epoch, value FROM metrics WHERE name LIKE 'losses/%1' ORDER BY epoch"
        found = run_query(connection, sql)
        assert (found.columns, found.is_cut) == (["epoch", "value"], False)
        assert found.rows == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
        cut = run_query(connection, sql, limit=3)
        assert (cut.rows, cut.is_cut) == (found.rows[:3], True)
        assert not run_query(connection, sql, limit=4).is_cut
        with pytest.raises(ConfigError, match="limit=0"):
            run_query(connection, sql, limit=0)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM runs",
        "UPDATE runs SET name = 'x' RETURNING name",
        "WITH gone AS (DELETE FROM runs RETURNING id) SELECT * FROM gone",
        "SELECT 1; DELETE FROM runs",
        "COMMIT; DELETE FROM runs; SELECT 1",
        "COMMIT",
        "CREATE TABLE mine (a INTEGER)",
        "ATTACH '{folder}/attached.db' AS other",
        "VACUUM INTO '{folder}/copy.db'",
        "PRAGMA query_only=OFF",
        "SET default_transaction_read_only TO off",
        "COPY runs FROM STDIN",
        "SELECT 1 INTO mine",
        "SELECT 1 FROM runs; COPY runs TO STDOUT",
        "SELECT nothing FROM nowhere",
        "no SQL at all",
        "",
    ],
)
def test_nothing_is_changed_when_a_statement_tries_to(
    filled: StatsReader, url: str, tmp_path: Path, statement: str
) -> None:
    before, files = dump(url), {path.name for path in tmp_path.iterdir()}
    with filled.connect() as connection, pytest.raises(DatabaseError):
        run_query(connection, statement.format(folder=tmp_path))
    with filled.connect() as connection:
        assert run_query(connection, "SELECT count(*) FROM runs").rows == [(1,)]
    assert dump(url) == before
    assert {path.name for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS a, '100%%' AS b",
        "SELECT 1 AS a, '100%%' AS b; -- a comment",
        "WITH one AS (SELECT 1 AS a) SELECT a, '100%%' AS b FROM one",
        "SELECT column1 AS a, column2 AS b FROM (VALUES (1, '100%%')) AS v",
        "VALUES (1, '100%%')",
    ],
)
def test_questions_are_answered_when_they_are_of_many_kinds(
    filled: StatsReader, statement: str
) -> None:
    with filled.connect() as connection:
        for _ in range(2):
            assert run_query(connection, statement).rows == [(1, "100%%")]
        assert run_query(connection, "SELECT 1 AS a WHERE 1 = 2").columns == ["a"]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO PROGRAM 'cat > {folder}/by_program'",
        "COPY (SELECT 1) TO '{folder}/by_server'",
        "COPY (SELECT 1) TO STDOUT",
        "SELECT 1; COPY (SELECT 1) TO '{folder}/by_server'",
    ],
)
def test_nothing_is_copied_when_the_user_of_postgresql_may_do_everything(
    postgres_server: PostgresServer,
    postgres_url: str,
    statement: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Ingester(postgres_url) as ingester:
        ingester.prepare()
    folder = postgres_server.folder  # its user may write there
    before = set(folder.iterdir())
    with StatsReader(postgres_url) as reader:
        with reader.connect() as connection, pytest.raises(DatabaseError, match="be answered"):
            run_query(connection, statement.format(folder=folder))
        with reader.connect() as connection:
            assert run_query(connection, "SELECT 1 AS a").rows == [(1,)]
    assert set(folder.iterdir()) == before
    assert caplog.records == []  # the pool tells of connections that it cannot use again


@pytest.mark.parametrize("statement", ["EXPLAIN SELECT 1", "SHOW transaction_read_only"])
def test_it_says_so_when_postgresql_is_asked_for_more_than_rows(
    postgres_url: str, statement: str
) -> None:
    with Ingester(postgres_url) as ingester:
        ingester.prepare()
    with (
        StatsReader(postgres_url) as reader,
        reader.connect() as connection,
        pytest.raises(DatabaseError, match="cannot be answered: syntax error"),
    ):
        run_query(connection, statement)


def test_only_rows_that_are_wanted_are_computed_when_postgresql_is_asked(
    postgres_url: str,
) -> None:
    with Ingester(postgres_url) as ingester:
        ingester.prepare()
    sql = "SELECT 6 / (4 - n) FROM generate_series(1, 10) AS n"  # the fourth is a division by zero
    with StatsReader(postgres_url) as reader, reader.connect() as connection:
        found = run_query(connection, sql, limit=2)
        assert (found.rows, found.is_cut) == ([(2,), (3,)], True)
        with pytest.raises(DatabaseError, match="division by zero"):
            run_query(connection, sql, limit=3)


def test_a_reader_cannot_write_when_the_database_is_a_file(tmp_path: Path) -> None:
    url = str(tmp_path / "a b?.db")
    with Ingester(url) as ingester:
        ingester.prepare()
    engine = open_engine(url, writes=False)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="readonly database"):
        connection.exec_driver_sql("DELETE FROM runs")
    engine.dispose()


def test_connections_are_closed_when_a_database_is_left(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    with Ingester(url) as ingester:
        ingester.prepare()
        assert isinstance(ingester, OpenDatabase)
        assert ingester.url == f"sqlite:///{url}"
    with StatsReader(url) as reader:
        assert reader.runs() == []
    for left in (ingester, reader):
        assert left._engine.pool.checkedin() == 0
