"""Watching a folder of runs."""

import threading
from pathlib import Path

import pytest
from event_logs import clean_dump, dump, write_run

from metta.database import Ingester, IngestReport, ingest
from metta.errors import MettaWarning


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return str(tmp_path / "statistics.sqlite")


def test_new_runs_are_found_when_they_begin_while_a_folder_is_watched(
    sqlite_url: str, tmp_path: Path
) -> None:
    logs = [tmp_path / "runs" / name / "events.jsonl" for name in ("a", "b", "group/c")]
    stop, rounds = threading.Event(), []

    def after(report: IngestReport) -> None:
        rounds.append(report.num_events)
        if len(rounds) <= len(logs):
            write_run(logs[len(rounds) - 1], 2)
        else:
            stop.set()

    with Ingester(sqlite_url) as ingester:
        total = ingester.watch(tmp_path / "runs", 0.0, stop=stop, on_round=after)
    assert rounds == [0, 8, 8, 8, 0]
    assert total.num_events == 24
    assert dump(sqlite_url) == clean_dump(tmp_path, *logs)


def test_there_is_a_last_round_when_stop_was_set_before(sqlite_url: str, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a" / "events.jsonl", 2)
    stop = threading.Event()
    stop.set()
    with Ingester(sqlite_url) as ingester:
        assert ingester.watch(tmp_path / "runs", stop=stop).num_events == 8


def test_a_problem_is_told_once_when_a_log_stays_damaged(sqlite_url: str, tmp_path: Path) -> None:
    bad = tmp_path / "runs" / "bad" / "events.jsonl"
    bad.parent.mkdir(parents=True)
    bad.write_text("no event\n")
    stop, rounds = threading.Event(), []

    def after(report: IngestReport) -> None:
        rounds.append(list(report.problems))
        if len(rounds) == 3:
            stop.set()

    with Ingester(sqlite_url) as ingester, pytest.warns(MettaWarning) as told:
        ingester.watch(tmp_path / "runs", 0.0, stop=stop, on_round=after)
    assert rounds == [[str(bad)]] * 4
    assert [str(warning.message)[:9] for warning in told] == ["line 1 of"]


def test_only_logs_that_changed_are_opened_when_a_folder_is_loaded_again(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [tmp_path / "runs" / name / "events.jsonl" for name in "ab"]
    for log in logs:
        write_run(log, 1)
    opened: list[Path] = []
    original = ingest.LogReader
    monkeypatch.setattr(ingest, "LogReader", lambda path: opened.append(path) or original(path))
    with Ingester(sqlite_url) as ingester:
        ingester.ingest_folder(tmp_path / "runs")
        write_run(logs[1], 2)
        ingester.ingest_folder(tmp_path / "runs")
    assert opened == [logs[0], logs[1], logs[1]]
