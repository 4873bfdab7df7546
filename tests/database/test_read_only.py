"""SQL of people changes nothing, whatever it says."""

from pathlib import Path

import pytest
from event_logs import dump, write_run
from sqlalchemy.exc import DBAPIError

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
