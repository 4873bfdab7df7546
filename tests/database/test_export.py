"""Tables and queries as files."""

import csv
import sys
from pathlib import Path

import pytest
from event_logs import dump, write_run
from pyarrow import parquet
from sqlalchemy import select

from metta.database import (
    Ingester,
    StatsReader,
    export,
    export_query,
    export_table,
    table_names,
)
from metta.database.schema import METADATA, VIEWS, episodes, runs
from metta.errors import ConfigError, DatabaseError, MissingExtraError


@pytest.fixture
def filled(ingester: Ingester, reader: StatsReader, tmp_path: Path) -> StatsReader:
    for name in ("first", "second"):
        write_run(tmp_path / "runs" / name / "events.jsonl", 4, name=name, run_id=name)
    ingester.ingest_folder(tmp_path / "runs")
    return reader


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_is_written_whole_when_it_is_exported(
    filled: StatsReader, tmp_path: Path
) -> None:
    assert set(table_names()) == {*METADATA.tables, *VIEWS}
    for name in table_names():
        with filled.connect() as connection:
            written = export_table(connection, name, tmp_path / f"{name}.csv")
            export_table(connection, name, tmp_path / f"{name}.parquet")
            found = connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar()
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        rows = read_csv(tmp_path / f"{name}.csv")
        assert written == found == len(rows) == table.num_rows > 0
        assert list(rows[0]) == table.column_names


def test_numbers_are_exact_when_they_come_back_from_a_file(
    filled: StatsReader, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_CHUNK", 7)
    with filled.connect() as connection:
        export_table(connection, "metrics", tmp_path / "metrics.parquet")
        export_table(connection, "metrics", tmp_path / "metrics.csv")
    expected = dump(url)["metrics"]
    table = parquet.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert sorted((tuple(row.values()) for row in table), key=repr) == expected
    values = [
        float(row["value"]) if row["value"] else None for row in read_csv(tmp_path / "metrics.csv")
    ]
    assert sorted(values, key=repr) == sorted((row[-1] for row in expected), key=repr)
    assert None in values


@pytest.mark.parametrize(("table", "rows"), [("metrics", 24), ("episodes", 8), ("runs", 1)])
def test_rows_are_of_one_run_when_only_it_is_wanted(
    filled: StatsReader, tmp_path: Path, table: str, rows: int
) -> None:
    with filled.connect() as connection:
        assert export_table(connection, table, tmp_path / "some.csv", run="first") == rows


def test_a_query_of_ones_own_is_written_when_it_is_given(
    filled: StatsReader, tmp_path: Path
) -> None:
    query = select(runs.c.name, episodes.c.episode_return).join(
        runs, runs.c.id == episodes.c.run_id
    )
    query = query.where(episodes.c.number == 0).order_by(episodes.c.run_id, episodes.c.sequence)
    with filled.connect() as connection:
        assert export_query(connection, query, tmp_path / "own.csv") == 8
    assert read_csv(tmp_path / "own.csv")[0] == {"name": "first", "episode_return": "1.0"}


def test_a_typed_error_tells_when_there_is_nothing_to_write(
    filled: StatsReader, tmp_path: Path
) -> None:
    with filled.connect() as connection:
        with pytest.raises(DatabaseError, match="no table 'metric'; did you mean 'metrics'"):
            export_table(connection, "metric", tmp_path / "a.csv")
        with pytest.raises(ConfigError, match=r"must end with \.csv or \.parquet"):
            export_table(connection, "metrics", tmp_path / "a.xlsx")
        with pytest.raises(DatabaseError, match="rows of 'logs' do not belong to runs"):
            export_table(connection, "logs", tmp_path / "a.csv", run="first")
        with pytest.raises(DatabaseError, match="no run 'nobody'"):
            export_table(connection, "metrics", tmp_path / "a.csv", run="nobody")
    assert not list(tmp_path.glob("a.*"))


def test_the_extra_is_named_when_pyarrow_is_not_installed(
    filled: StatsReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        filled.connect() as connection,
        pytest.raises(MissingExtraError, match=r"metta-rl\[parquet\]"),
    ):
        export_table(connection, "runs", tmp_path / "runs.parquet")
    assert not list(tmp_path.glob("*runs.parquet*"))
