"""The log of a sweep: events are written once, and stand or fall with the jobs that they ask for."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select, update

from metta.errors import ConfigError, DatabaseError
from metta.jobs.job import JobSpec
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.tables import SWEEPS, sweep_events, sweeps
from metta.sweeps.trials import Event
from tests.sweeps.toy_sweeps import driven, toy_definition


def test_events_are_written_once_when_the_answer_of_the_database_was_lost(
    url: str, tmp_path: Path
) -> None:
    definition = toy_definition(tmp_path)
    event = Event("ask", 1, {"values": {"a": 0.1}, "all_seeds": True}, 12.25)
    with SweepLedger(url) as ledger:
        ledger.begin(definition)
        for _ in range(2):
            ledger.append("toy", [event], sequence=0)
        assert ledger.events("toy") == [event]
        with pytest.raises(ConfigError, match="has a sweep 'toy' already"):
            ledger.begin(definition)
        assert ledger.definition("toy") == definition
        assert ledger.set_trials(definition, 99).trials == ledger.definition("toy").trials == 99
        with pytest.raises(ConfigError, match="has no sweep 'tov'; did you mean 'toy'"):
            ledger.definition("tov")
        assert ledger.names() == ["toy"]


def test_an_event_is_lost_with_its_jobs_when_one_of_them_cannot_be_posted(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path)
    event = Event("ask", 1, {"values": {}, "all_seeds": True}, 1.0)
    bad = JobSpec("train", "sweep/toy/t001-s1", "sweep/toy", {}, max_attempts=0)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        with pytest.raises(ConfigError):
            ledger.append("toy", [event], sequence=0, jobs=[bad])
        assert ledger.events("toy") == []


def test_a_new_database_is_asked_for_when_one_has_sweeps_of_another_version(tmp_path: Path) -> None:
    url = str(tmp_path / "stats.db")
    with SweepLedger(url) as ledger:
        ledger.begin(toy_definition(tmp_path))
        with ledger.transaction() as connection:
            connection.execute(update(SWEEPS.version_table).values(version=77))
    with (
        SweepLedger(url) as ledger,
        pytest.raises(DatabaseError, match="version 77, this metta uses"),
    ):
        ledger.check()
    with SweepLedger(url) as ledger, pytest.raises(DatabaseError, match="use another database for"):
        ledger.names()


@pytest.mark.parametrize(
    "change",
    [{"name": "../other"}, {"ranges": 3}, {"surprise": 1}, {"trials": None, "words": None}],
)
def test_a_definition_is_refused_when_metta_did_not_write_it(
    tmp_path: Path, change: dict[str, object]
) -> None:
    definition = toy_definition(tmp_path)
    text = json.dumps({**definition.to_dict(), **change})
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        with ledger.transaction() as connection:
            connection.execute(update(sweeps).values(definition=text))
        with pytest.raises((DatabaseError, ConfigError), match="the sweep "):
            ledger.definition("toy")


def test_the_table_tells_everything_in_order_when_it_is_queried(url: str, tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, trials=3)
    with SweepLedger(url) as ledger:
        ledger.begin(definition)
        driven(ledger, definition)
        query = select(sweep_events.c.sequence, sweep_events.c.kind).order_by(
            sweep_events.c.sequence
        )
        with ledger.transaction() as connection:
            rows = [tuple(row) for row in connection.execute(query)]
        with ledger.transaction() as connection:
            connection.execute(sweep_events.update().values(payload="[1]"))
        with pytest.raises(
            DatabaseError, match="the sweep 'toy' holds data that metta did not write"
        ):
            ledger.events("toy")
        ledger.remove(definition)
        assert (ledger.names(), ledger.records()) == ([], [])
    assert rows == [*enumerate(["ask", "tell"] * 3)]
