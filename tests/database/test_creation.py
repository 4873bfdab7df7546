"""Tables are made once; a database of another version is refused, and changed by nobody."""

from pathlib import Path

import pytest
from event_logs import fork, wait_for, write_run
from sqlalchemy import update

from metta.database import Ingester, StatsReader
from metta.database.connection import open_engine
from metta.database.schema import SCHEMA_VERSION, schema_version
from metta.errors import DatabaseError


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 7])
def test_a_new_database_is_asked_for_when_one_has_another_version(
    url: str, tmp_path: Path, version: int
) -> None:
    log = tmp_path / "events.jsonl"
    write_run(log, 1)
    with Ingester(url) as ingester:
        ingester.prepare()
    engine = open_engine(url, writes=True)
    with engine.begin() as connection:
        connection.execute(update(schema_version).values(version=version))
    engine.dispose()
    match = f"version {version}, this metta uses {SCHEMA_VERSION}; .* a new database"
    with Ingester(url) as ingester, pytest.raises(DatabaseError, match=match):
        ingester.ingest(log)
    with pytest.raises(DatabaseError, match=match):
        StatsReader(url)


def test_a_reader_asks_to_ingest_when_a_database_is_absent_or_empty(tmp_path: Path) -> None:
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
