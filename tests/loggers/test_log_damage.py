"""A log that lost lines since its checkpoint, and the table that still has the rows."""

import json
import os
import warnings
from pathlib import Path

import pytest

from metta.errors import EventLogError, MettaWarning, UnsafeFileError
from metta.loggers import CsvSink, EventLog, MetricRow, StatsLogger
from metta.loggers.events.history import LogTail
from metta.loggers.events.log import LogMark, read_events


@pytest.fixture
def mark(tmp_path: Path) -> LogMark:
    """Of a log and a table with rows of epochs 1 to 6."""
    table = CsvSink(tmp_path / "metrics.csv")
    with EventLog(tmp_path / "events.jsonl", "r") as log:
        for epoch in range(1, 7):
            row = MetricRow(10 * epoch, epoch, {"loss": epoch / 2})
            payload = {"agent_step": 10 * epoch, "epoch": epoch, "metrics": row.metrics}
            log.append("metrics", payload)
            table.write(row)
        found = log.sync()
    table.close()
    assert found is not None
    return found


def epochs_of(table: Path) -> list[int]:
    return [int(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:2]


def hole(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[4:]


def swap(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], *lines[2:]]


def edit(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"loss":2.0', b'"loss":7.0'), *lines[4:]]


def nothing(_: list[bytes]) -> list[bytes]:
    return []


@pytest.mark.parametrize("damage", [cut, hole, swap, edit, nothing])
def test_a_table_keeps_its_rows_when_the_log_is_damaged(
    tmp_path: Path, mark: LogMark, damage
) -> None:
    path, table = tmp_path / "events.jsonl", tmp_path / "metrics.csv"
    before = table.read_text()
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    for start in range(2):  # also when it is resumed once more
        with (
            EventLog(path, mark=mark) as log,
            StatsLogger([CsvSink(table)], event_log=log) as logger,
        ):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                logger.rewind(6, 60)
            assert start or any("is damaged" in str(one.message) for one in told)
            assert log.append("heartbeat", {}) > mark.sequence
            mark = log.sync()
    assert table.read_text() == before


def test_the_log_of_another_run_is_refused(tmp_path: Path, mark: LogMark) -> None:
    (tmp_path / "events.jsonl").unlink()
    with EventLog(tmp_path / "events.jsonl", "other") as log:
        log.append("heartbeat", {})
    with pytest.raises(EventLogError, match="is the log of another run, 'other'"):
        EventLog(tmp_path / "events.jsonl", mark=mark)


@pytest.mark.parametrize("damage", [cut, hole, swap, edit, nothing])
def test_a_table_is_mended_when_the_log_is_whole(tmp_path: Path, mark: LogMark, damage) -> None:
    path, table = tmp_path / "events.jsonl", tmp_path / "metrics.csv"
    before = table.read_text()
    table.write_bytes(b"".join(damage(table.read_bytes().splitlines(keepends=True))))
    with EventLog(path, mark=mark) as log, StatsLogger([CsvSink(table)], event_log=log) as logger:
        last = logger.rewind(6, 60)
    assert last is not None
    assert last.epoch == 6
    assert table.read_text() == before


def test_a_tail_of_a_log_reaches_back_as_far_as_is_wanted(tmp_path: Path, mark: LogMark) -> None:
    path, table = tmp_path / "events.jsonl", tmp_path / "metrics.csv"
    tail = LogTail(path, tail_bytes=300)
    assert not tail.is_whole
    assert tail.first is not None
    assert tail.first.epoch > 1
    tail.reach(2)
    assert tail.first.epoch <= 2
    assert (mark.sequence, epochs_of(table)[-1]) == (6, 6)


def test_a_changed_line_is_a_warning_for_readers(tmp_path: Path, mark: LogMark) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    with pytest.warns(MettaWarning, match="is damaged: at line 4 the line was changed"):
        assert len(list(read_events(path))) == mark.sequence


def test_a_line_of_an_older_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    event = {"run": "r", "sequence": 1, "time": 0.5, "kind": "heartbeat", "payload": {}}
    path.write_text(json.dumps(event) + "\n")
    with EventLog(path) as log:
        log.append("heartbeat", {})
    assert [event.sequence for event in read_events(path)] == [1, 2]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(UnsafeFileError, match="not a regular file"):
        list(read_events(tmp_path / "events.jsonl"))
    with pytest.raises(UnsafeFileError, match="not a regular file"):
        EventLog(tmp_path / "events.jsonl")
