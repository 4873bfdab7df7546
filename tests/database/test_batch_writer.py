"""Rows into tables, inside a transaction."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, select

from metta.database.batch_writer import insert_absent, name_ids_of, write_events
from metta.database.connection import open_engine
from metta.database.creation import create_tables
from metta.database.event_rows import EventRows, rows_of
from metta.database.schema import metric_names, metric_values
from metta.loggers import Event


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    opened = open_engine(url, writes=True)
    create_tables(opened)
    yield opened
    opened.dispose()


def metrics_of(sequence: int, **metrics: float) -> EventRows:
    payload = {"epoch": sequence, "agent_step": sequence, "metrics": metrics}
    return rows_of(Event("r", sequence, 1.0, "metrics", payload))


def test_names_keep_their_numbers_when_they_are_asked_for_again(engine: Engine) -> None:
    names = [f"name {number}" for number in range(1200)]
    with engine.begin() as connection:
        first = name_ids_of(connection, names[:700])
    with engine.begin() as connection:
        second = name_ids_of(connection, names)
    assert len(set(second.values())) == 1200
    assert first.items() <= second.items()


def test_a_row_stays_as_it_is_when_its_key_is_there(engine: Engine) -> None:
    with engine.begin() as connection:
        insert_absent(connection, metric_names, [{"id": 7, "name": "a"}])
        insert_absent(connection, metric_names, [{"id": 8, "name": "a"}, {"id": 9, "name": "b"}])
        insert_absent(connection, metric_names, [])
        found = connection.execute(select(metric_names).order_by(metric_names.c.id))
        assert [tuple(row) for row in found] == [(7, "a"), (9, "b")]


def test_nothing_is_written_when_the_transaction_is_not_committed(engine: Engine) -> None:
    with engine.begin() as connection:
        names = name_ids_of(connection, ["a"])
    with engine.connect() as connection:
        options = {"log_id": 1, "name_ids": names, "unnamed": "x"}
        assert write_events(connection, [metrics_of(1, a=0.1)], **options) == (1, 1, 0)
        assert len(connection.execute(select(metric_values)).all()) == 1
        connection.rollback()
        assert write_events(connection, [metrics_of(1, a=1e-300)], **options) == (1, 1, 0)
        (row,) = connection.execute(select(metric_values))
        assert row.value == 1e-300
        assert write_events(connection, [metrics_of(1, a=1e-300)], **options) == (0, 0, 0)
        connection.rollback()
