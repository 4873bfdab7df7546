"""Old databases become new ones, with all that is in them; newer ones are refused."""

from pathlib import Path
from typing import Any

import pytest
from event_logs import clean_dump, dump, fork, wait_for, write_epochs, write_run
from sqlalchemy import create_engine, inspect, select, update

from metta.database import Ingester, StatsReader
from metta.database.connection import database_url, open_engine
from metta.database.migrations import MIGRATIONS, migrate
from metta.database.schema import METADATA, SCHEMA_VERSION, VIEWS, schema_version
from metta.errors import DatabaseError
from metta.loggers import EventLog

HERE = Path(__file__).parent


def statements(url: str, *lines: str) -> None:
    engine = create_engine(database_url(url))
    with engine.begin() as connection:
        for line in lines:
            connection.exec_driver_sql(line)
    engine.dispose()


def make_version_1(url: str) -> None:
    """An empty database of the first version."""
    kind = database_url(url).get_backend_name()
    if kind == "sqlite":
        Path(url).parent.mkdir(parents=True, exist_ok=True)
    text = (HERE / f"version_1_{kind}.sql").read_text()
    statements(url, *filter(str.strip, text.split(";")))
    statements(url, "INSERT INTO schema_version (version) VALUES (1)")


def shape(url: str) -> dict[str, Any]:
    """Tables, columns, keys and views."""
    engine = create_engine(database_url(url))
    looker = inspect(engine)
    found: dict[str, Any] = {"views": sorted(looker.get_view_names())}
    for table in looker.get_table_names():
        columns = looker.get_columns(table)
        found[table] = (
            sorted((c["name"], str(c["type"]), c["nullable"]) for c in columns),
            looker.get_pk_constraint(table)["constrained_columns"],
            sorted(tuple(u["column_names"]) for u in looker.get_unique_constraints(table)),
        )
    engine.dispose()
    return found


@pytest.fixture
def old_url(url: str, tmp_path: Path) -> tuple[str, Path]:
    """A version 1 database with a run in it, and the run's log."""
    log = tmp_path / "runs" / "first" / "events.jsonl"
    write_run(log, 5, replays=False)  # version 1 has no table for them
    write_run(log, 6, replays=False)  # the same run continues
    filled = str(tmp_path / "filled.sqlite")
    with Ingester(filled) as ingester:
        ingester.ingest(log)
    make_version_1(url)
    source, target = (create_engine(database_url(address)) for address in (filled, url))
    with source.connect() as read, target.begin() as write:
        for table in METADATA.sorted_tables:
            columns = [column for column in table.c if column.name != "starts"]
            rows = [dict(row) for row in read.execute(select(*columns)).mappings()]
            if rows and table is not schema_version:
                write.execute(table.insert().inline(), rows)
        if target.dialect.name == "postgresql":  # numbers were given by hand
            for name in ("logs", "runs", "metric_names"):
                write.exec_driver_sql(f"SELECT setval('{name}_id_seq', 1000)")
    source.dispose()
    target.dispose()
    return url, log


def test_nothing_is_lost_when_a_database_of_version_1_is_brought_up_to_date(
    old_url: tuple[str, Path], tmp_path: Path
) -> None:
    url, log = old_url
    with Ingester(url) as ingester:
        assert ingester.ingest(log).num_events == 0
        assert dump(url) == clean_dump(tmp_path, log)
        with EventLog(log) as writer:
            write_epochs(writer, 6, 8)
        ingester.ingest(log)
    assert dump(url) == clean_dump(tmp_path, log)
    with StatsReader(url) as reader:
        assert reader.runs()[0].starts == 2


def test_the_schema_equals_a_fresh_one_when_it_came_by_migrations(
    old_url: tuple[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, _ = old_url
    engine = open_engine(url, writes=True)
    assert migrate(engine) == 1
    migrated = shape(url)
    if engine.dialect.name == "sqlite":
        fresh = str(tmp_path / "fresh.sqlite")
        statements_before = []
    else:
        fresh = url
        tables = ", ".join(METADATA.tables)
        statements_before = [f"DROP VIEW {', '.join(VIEWS)}", f"DROP TABLE {tables}"]
    engine.dispose()
    statements(fresh, *statements_before)
    with Ingester(fresh) as ingester:
        ingester.prepare()
    assert shape(fresh) == migrated


def test_nothing_is_changed_when_a_migration_fails(
    old_url: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, log = old_url
    before = shape(url)
    original = MIGRATIONS[2]

    def broken(connection: Any) -> None:
        original(connection)
        connection.exec_driver_sql("SELECT nothing FROM nowhere")

    monkeypatch.setitem(MIGRATIONS, 2, broken)
    with Ingester(url) as ingester, pytest.raises(DatabaseError):
        ingester.ingest(log)
    assert shape(url) == before
    monkeypatch.undo()
    with Ingester(url) as ingester:
        assert ingester.ingest(log).num_events == 0


def test_every_version_has_a_way_when_the_schema_moves_on() -> None:
    assert list(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


def test_it_is_refused_when_a_database_is_newer_than_the_code(url: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    write_run(log, 1)
    with Ingester(url) as ingester:
        ingester.prepare()
    engine = open_engine(url, writes=True)
    with engine.begin() as connection:
        connection.execute(update(schema_version).values(version=SCHEMA_VERSION + 7))
    engine.dispose()
    match = f"version {SCHEMA_VERSION + 7}, this metta knows {SCHEMA_VERSION}"
    with Ingester(url) as ingester, pytest.raises(DatabaseError, match=match):
        ingester.ingest(log)
    with pytest.raises(DatabaseError, match=match):
        StatsReader(url)


def test_a_reader_asks_to_ingest_when_a_database_is_old_or_empty(
    old_url: tuple[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(DatabaseError, match="has schema version 1, this metta reads"):
        StatsReader(old_url[0])
    with pytest.raises(DatabaseError, match="there is no database"):
        StatsReader(str(tmp_path / "absent.sqlite"))
    assert not (tmp_path / "absent.sqlite").exists()
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(DatabaseError, match="holds no statistics"):
        StatsReader(str(empty))


def test_a_typed_error_tells_when_the_file_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(DatabaseError, match="file is not a database"):
        StatsReader(str(path))
    with Ingester(str(path)) as ingester, pytest.raises(DatabaseError, match="not a database"):
        ingester.prepare()


def test_the_schema_is_made_once_when_processes_come_at_once(url: str) -> None:
    children = [fork(lambda: Ingester(url).prepare()) for _ in range(4)]
    for child in children:
        wait_for(child)
    with StatsReader(url) as reader:
        assert reader.runs() == []
