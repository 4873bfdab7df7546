"""Rows of metrics, each once, whatever a crash took back."""

import csv
import math
from pathlib import Path

import pytest

from metta.errors import MettaWarning
from metta.loggers import CsvSink, EventLog, StatsClient, StatsLogger
from metta.loggers.events.history import metric_rows
from metta.loggers.sink import MetricRow


def begin(log: EventLog, epoch: int) -> None:
    StatsClient(log).create_run("run", from_epoch=epoch)


def add(log: EventLog, epoch: int, loss: float) -> None:
    metrics = {"losses/loss": loss}
    log.append("metrics", {"agent_step": 10 * epoch, "epoch": epoch, "metrics": metrics})


def test_later_rows_are_taken_back_when_a_run_goes_on_from_before_them(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 0)
        for epoch in (1, 2, 3):
            add(log, epoch, float(epoch))
        begin(log, 1)
        for epoch in (2, 3, 4):
            add(log, epoch, epoch + 0.5)
        begin(log, 4)
        add(log, 5, math.nan)
        rows = metric_rows(log.path)
    assert [(row.agent_step, row.epoch) for row in rows] == [(10 * e, e) for e in range(1, 6)]
    losses = [row.metrics["losses/loss"] for row in rows]
    assert losses[:-1] == [1.0, 2.5, 3.5, 4.5]
    assert math.isnan(losses[-1])


def add_scores(log: EventLog, epoch: int, score: float) -> None:
    scores = {"simulation_scores": {"a/b": score}, "late_row": {"eval_a/b": score}}
    StatsClient(log).record_evaluation(epoch=epoch, agent_step=10 * epoch, scores=scores)


def test_late_scores_are_rows_behind_those_of_their_epoch(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 0)
        for epoch in (2, 4, 6):
            add(log, epoch, float(epoch))
        for epoch in (1, 2, 5):
            add_scores(log, epoch, float(epoch))
        begin(log, 4)  # the scores of epoch 5 come again
        add(log, 6, 6.5)
        for epoch in (3, 5):
            add_scores(log, epoch, epoch + 0.5)
        rows = metric_rows(log.path)
        recorded = StatsClient(log).recorded([1, 2, 3, 4])
        with StatsLogger(event_log=log) as logger:
            last = logger.rewind(6)
    found = [(row.epoch, row.agent_step, *row.metrics.items()) for row in rows]
    assert found == [
        (1, 10, ("eval_a/b", 1.0)),
        (2, 20, ("losses/loss", 2.0)),
        (2, 20, ("eval_a/b", 2.0)),
        (3, 30, ("eval_a/b", 3.5)),
        (4, 40, ("losses/loss", 4.0)),
        (5, 50, ("eval_a/b", 5.5)),
        (6, 60, ("losses/loss", 6.5)),
    ]
    assert recorded == {("evaluation", epoch, "") for epoch in (1, 2, 3)}
    assert last == rows[-1]


def test_rows_of_another_run_stay_when_a_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, run_id="a") as log:
        begin(log, 0)
        add(log, 1, 0.5)
    with EventLog(path, run_id="b") as log:
        begin(log, 0)
        add(log, 1, 0.25)
    assert [row.metrics["losses/loss"] for row in metric_rows(path)] == [0.5, 0.25]


def test_the_table_follows_the_event_log_when_a_run_goes_on(tmp_path: Path) -> None:
    """Rows that were lost are taken out, rows that the sink had not written yet are put in."""
    table = tmp_path / "metrics.csv"
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 0)
        for epoch in (1, 2, 3):
            add(log, epoch, float(epoch))
        sink = CsvSink(table)
        sink.write(MetricRow(10, 1, {"losses/loss": 1.0}))  # then the process was killed
        sink.close()
        begin(log, 2)
        with StatsLogger([CsvSink(table)], event_log=log) as logger:
            last = logger.rewind(2)
            assert last is not None
            assert last.epoch == 2
            logger.log({"losses/loss": 3.5}, agent_step=30, epoch=3)
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["epoch"], row["losses/loss"]) for row in rows] == [
        ("1", "1.0"), ("2", "2.0"), ("3", "3.5")
    ]  # fmt: skip


def test_nothing_is_written_when_a_run_has_no_rows_yet(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 0)
        with StatsLogger([CsvSink(tmp_path / "metrics.csv")], event_log=log) as logger:
            assert logger.rewind(0) is None
    assert not (tmp_path / "metrics.csv").exists()


def test_training_goes_on_when_the_table_cannot_be_rewritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 0)
        add(log, 1, 0.5)
        logger = StatsLogger([CsvSink(tmp_path / "metrics.csv")], event_log=log)
        with pytest.warns(MettaWarning, match="csv sink could not be brought in line"):
            logger.rewind(1)


def test_rows_are_taken_back_when_nobody_records_runs(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        for epoch in (1, 2, 3):
            add(log, epoch, float(epoch))
        with StatsLogger(event_log=log) as logger:
            for _ in range(2):  # once is enough
                last = logger.rewind(1)
                assert last is not None
                assert last.epoch == 1
        add(log, 2, 2.5)
        rows = metric_rows(log.path)
        assert [(row.epoch, row.metrics["losses/loss"]) for row in rows] == [(1, 1.0), (2, 2.5)]
        assert log.path.read_text().count('"rewind"') == 1


def test_old_rows_stay_when_a_new_log_was_begun(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.write(MetricRow(10, 1, {"losses/loss": 1.0}))
    sink.close()
    before = (tmp_path / "metrics.csv").read_text()
    with EventLog(tmp_path / "events.jsonl") as log:
        begin(log, 1)
        with StatsLogger([CsvSink(tmp_path / "metrics.csv")], event_log=log) as logger:
            assert logger.rewind(1) is None
    assert (tmp_path / "metrics.csv").read_text() == before


def test_a_run_goes_on_when_its_log_has_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("nonsense\n")
    with EventLog(tmp_path / "other.jsonl") as log:
        log.path = path
        logger = StatsLogger(event_log=log)
        with pytest.warns(MettaWarning, match="is damaged: at byte 0 the line is not an event"):
            assert logger.rewind(1) is None
        logger.close()
