"""A table that is longer than the tail of its log."""

import warnings
from pathlib import Path

import pytest

from metta.loggers import CsvSink, EventLog, MetricRow, StatsLogger
from metta.loggers.events.history import Continuation, LogTail
from metta.loggers.sinks.csv_lines import columns_of, table_lines
from metta.loggers.sinks.csv_repair import follow_log

LAST = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sink = CsvSink(tmp_path / "metrics.csv")
    with EventLog(tmp_path / "events.jsonl") as log:
        for epoch in range(1, LAST + 1):
            row = MetricRow(10 * epoch, epoch, {"loss": epoch / 2})
            log.append(
                "metrics", {"agent_step": 10 * epoch, "epoch": epoch, "metrics": row.metrics}
            )
            sink.write(row)
    sink.close()
    return tmp_path


@pytest.mark.parametrize("change", ["cut", "longer", "edited", "removed", "widened"])
def test_the_end_of_a_table_follows_the_tail_of_the_log(folder: Path, change: str) -> None:
    table = folder / "metrics.csv"
    before = table.read_bytes()
    lines = before.splitlines(keepends=True)
    changed = {
        "cut": lines[:-3],
        "longer": [*lines, b"410,41,9.0\n"],
        "edited": [*lines[:-1], b"400,40,7.5\n"],
        "removed": lines[:3],
        "widened": lines,
    }[change]
    table.write_bytes(b"".join(changed))
    file = table.stat().st_ino
    if change == "widened":
        with EventLog(folder / "events.jsonl") as log:
            metrics = {"loss": 1.0, "more": 2.0}
            log.append("metrics", {"agent_step": 400, "epoch": 40, "metrics": metrics})
    tail = LogTail(folder / "events.jsonl", tail_bytes=1000)
    assert not tail.is_whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert follow_log(table, Continuation(tail, LAST, 10 * LAST, is_as_marked=True)) == ""
    if change == "widened":
        assert columns_of(table) == ["agent_step", "epoch", "loss", "more"]
        found = [line.cells for line in table_lines(table, columns_of(table))]
        assert [int(cells["epoch"]) for cells in found] == [*range(1, LAST + 1), LAST]
        assert (found[0]["more"], found[-1]["more"]) == ("", "2.0")
    else:
        assert table.read_bytes() == before
        # a long table is not copied for its last lines
        assert (table.stat().st_ino == file) == (change != "removed")


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("name", ["metrics", "evaluations"])
def test_a_table_with_two_rows_per_epoch_stays_wherever_the_tail_begins(
    name: str, is_marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, of_late_scores = tmp_path / f"{name}.csv", name == "evaluations"
    with StatsLogger(event_log=EventLog(tmp_path / "events.jsonl")) as logger:
        assert logger.event_log is not None
        logger.add_sink(CsvSink(table, of_late_scores=of_late_scores))
        for epoch in range(1, 9):
            for score in (0.5, 0.25):
                row = {"score": epoch + score}
                at = {"agent_step": 10 * epoch, "epoch": epoch}
                logger.log(row, **at)
                if of_late_scores:
                    logger.log(row, **at, is_late=True)
                    logger.event_log.append("evaluation", {**at, "scores": {"late_row": row}})
        mark = logger.event_log.sync() if is_marked else None
    before = table.read_bytes()
    assert before.count(b"\n") == 17
    for tail_bytes in range(200, (tmp_path / "events.jsonl").stat().st_size, 50):
        monkeypatch.setattr("metta.loggers.events.history.TAIL_BYTES", tail_bytes)
        log = EventLog(tmp_path / "events.jsonl", mark=mark)
        sink = CsvSink(table, of_late_scores=of_late_scores)
        with warnings.catch_warnings(), StatsLogger([sink], event_log=log) as logger:
            warnings.simplefilter("error")
            logger.rewind(8, 80)
        assert table.read_bytes() == before, f"with a tail of {tail_bytes} bytes"
