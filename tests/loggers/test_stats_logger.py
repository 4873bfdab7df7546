import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metta.errors import ConfigError, MettaWarning
from metta.loggers import CsvSink, EventLog, StatsLogger, read_events
from metta.loggers.sinks import sink_worker
from metta.loggers.sinks.sink_worker import SinkWorker
from tests.loggers.sink_cases import BlockedSink, FakeRun, MemorySink


@pytest.fixture
def blocked() -> Iterator[BlockedSink]:
    sink = BlockedSink()
    yield sink
    sink.release.set()
    for thread in threading.enumerate():
        if thread.name == "metta-sink-blocked":
            thread.join()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_worker, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sink_worker, "_MAX_PAUSE", 0.001)
    monkeypatch.setattr(sink_worker, "_MAX_CLOSING_PAUSE", 0.001)


def log_rows(logger: StatsLogger, *epochs: int) -> None:
    for epoch in epochs:
        logger.log({"a": epoch / 2}, agent_step=10 * epoch, epoch=epoch)


def log_and_close(logger: StatsLogger, *epochs: int) -> None:
    log_rows(logger, *epochs)
    logger.close()


def log_until(logger: StatsLogger, match: str) -> int:
    """Log rows until the logger warns, as `match` says; returns how many there were."""
    num_rows = 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        while not seen:
            num_rows += 1
            log_rows(logger, num_rows)
    assert re.search(match, str(seen[0].message))
    return num_rows


def epochs_of(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_every_sink_and_the_event_log_have_each_row_when_it_is_logged(tmp_path: Path) -> None:
    memory, run = MemorySink(), FakeRun()
    log = EventLog(tmp_path / "events.jsonl")
    sinks = [memory, CsvSink(tmp_path / "metrics.csv")]
    with StatsLogger(sinks, event_log=log, wandb_run=run) as logger:
        log_rows(logger, 1, 2, 3)
    log.close()
    assert [row.epoch for row in memory.rows] == [1, 2, 3]
    assert memory.rows[2].metrics == {"a": 1.5}
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 4
    assert [row["metric/agent_step"] for row in run.rows] == [10, 20, 30]
    payloads = [event.payload for event in read_events(log.path) if event.kind == "metrics"]
    assert payloads[0] == {"agent_step": 10, "epoch": 1, "metrics": {"a": 0.5}}
    assert len(payloads) == 3
    assert not list(tmp_path.glob("undelivered*"))


def test_a_row_keeps_its_numbers_when_the_caller_changes_the_mapping(blocked: BlockedSink) -> None:
    logger, metrics = StatsLogger([blocked]), {"a": 1.0}
    logger.log(metrics, agent_step=1, epoch=1)
    metrics["a"] = 2.0
    blocked.release.set()
    logger.close()
    assert blocked.rows[0].metrics == {"a": 1.0}


def test_training_goes_on_and_rows_are_kept_when_a_sink_hangs(
    tmp_path: Path, blocked: BlockedSink
) -> None:
    healthy = MemorySink()
    log = EventLog(tmp_path / "events.jsonl")
    logger = StatsLogger([healthy, blocked], event_log=log, run_dir=tmp_path, drain_seconds=0.5)
    log_rows(logger, *range(1, 101))  # would never return if it waited
    assert blocked.entered.wait(5.0)
    with pytest.warns(
        MettaWarning, match=r"blocked sink did not take 100 records; they are in .*jsonl"
    ):
        logger.close()
    assert epochs_of(tmp_path / "undelivered-blocked.jsonl") == list(range(1, 101))
    assert [row.epoch for row in healthy.rows] == list(range(1, 101))
    assert healthy.num_closed == 1
    log.close()
    told = [event.payload for event in read_events(log.path) if event.kind == "sink_failure"]
    assert [payload["sink"] for payload in told] == ["blocked"]


def test_rows_go_on_when_a_hanging_sink_recovers_after_close(
    tmp_path: Path, blocked: BlockedSink
) -> None:
    logger = StatsLogger([blocked], run_dir=tmp_path, drain_seconds=0.0)
    log_rows(logger, 1)
    assert blocked.entered.wait(5.0)
    with pytest.warns(MettaWarning, match="did not take 1 records"):
        logger.close()
    log_rows(logger, 2, 3)
    blocked.release.set()
    logger.drain_seconds = 10.0
    logger.close()
    assert [row.epoch for row in blocked.rows] == [1, 2, 3]
    assert blocked.num_closed == 1


@pytest.mark.usefixtures("quick_retries")
def test_all_rows_arrive_in_order_when_a_failing_sink_recovers(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.problem = OSError("no route to host")
    log = EventLog(tmp_path / "events.jsonl")
    logger = StatsLogger([sink], event_log=log, run_dir=tmp_path)
    before = log_until(logger, r"memory sink failed \(OSError: no route to host\); records wait")
    sink.problem = None
    after = log_until(logger, "memory sink works again")
    logger.close()
    log.close()
    expected = [*range(1, before + 1), *range(1, after + 1)]
    assert [row.epoch for row in sink.rows] == expected
    assert sink.num_attempts > len(expected)
    told = [e.payload["message"] for e in read_events(log.path) if e.kind == "sink_failure"]
    assert [message.split()[0] for message in told] == ["failed", "works"]
    assert not list(tmp_path.glob("undelivered*"))


@pytest.mark.usefixtures("quick_retries")
def test_rows_are_kept_in_a_file_when_a_sink_fails_to_the_end(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.problem = ValueError("broken")
    logger = StatsLogger([sink], run_dir=tmp_path, drain_seconds=0.1)
    with pytest.warns(MettaWarning) as seen:
        log_and_close(logger, 1, 2, 3)
    assert any("did not take 3 records" in str(warning.message) for warning in seen)
    assert epochs_of(tmp_path / "undelivered-memory.jsonl") == [1, 2, 3]
    assert (sink.rows, sink.num_closed) == ([], 1)


def test_the_loss_is_said_when_there_is_no_directory_for_rows(blocked: BlockedSink) -> None:
    logger = StatsLogger([blocked], drain_seconds=0.0)
    log_rows(logger, 1, 2)
    with pytest.warns(MettaWarning, match="did not take 2 records; there is no run directory"):
        logger.close()


def test_rows_are_kept_when_an_interrupt_comes_while_closing(
    tmp_path: Path, blocked: BlockedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    logger = StatsLogger([blocked], run_dir=tmp_path)
    log_rows(logger, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt), pytest.warns(MettaWarning, match="2 rows"):
            logger.close()
    assert epochs_of(tmp_path / "undelivered-blocked.jsonl") == [1, 2]


def test_everything_opens_again_when_a_row_follows_close(tmp_path: Path) -> None:
    sink = MemorySink()
    logger = StatsLogger([sink], run_dir=tmp_path)
    for epoch in (1, 2):
        log_rows(logger, epoch)
        logger.close()
        logger.close()
    assert [row.epoch for row in sink.rows] == [1, 2]
    assert sink.num_closed == 2
    assert not [t for t in threading.enumerate() if t.name == "metta-sink-memory"]


def test_sinks_have_every_row_when_flush_returns_true() -> None:
    sink = MemorySink()
    logger = StatsLogger([sink])
    assert logger.flush()  # nothing was logged yet
    log_rows(logger, 1, 2)
    assert logger.flush()
    assert (len(sink.rows), sink.num_flushed) == (2, 1)
    logger.close()
    assert logger.flush(0.1)  # nothing to wait for


def test_flush_gives_up_when_a_sink_hangs(blocked: BlockedSink) -> None:
    logger = StatsLogger([blocked])
    log_rows(logger, 1)
    assert not logger.flush(0.01)
    blocked.release.set()
    logger.close()


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("method", ["flush", "close"])
def test_a_failure_is_told_when_a_sink_cannot_flush_or_close(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("stuck")

    sink = MemorySink()
    monkeypatch.setattr(sink, method, fail)
    logger = StatsLogger([sink])
    log_rows(logger, 1)
    with pytest.warns(MettaWarning, match=r"memory sink failed .*RuntimeError: stuck"):
        getattr(logger, method)()
    monkeypatch.undo()
    logger.close()


def test_a_second_sink_of_one_name_is_refused_when_it_is_added() -> None:
    with pytest.raises(ConfigError, match="there is a sink 'memory' already"):
        StatsLogger([MemorySink(), MemorySink()])


def test_the_console_is_a_sink_when_it_is_asked_for() -> None:
    assert list(StatsLogger(console=True, wandb_run=FakeRun()).sinks) == ["wandb", "console"]
    assert StatsLogger().sinks == {}


def make_worker(sink: MemorySink, path: Path, report: Callable[[str, str], None]) -> SinkWorker:
    return SinkWorker(sink, report, undelivered=path, backlog=3)


def test_the_oldest_rows_go_to_the_file_when_too_many_wait(
    tmp_path: Path, blocked: BlockedSink
) -> None:
    logger = StatsLogger([], run_dir=tmp_path, drain_seconds=0.0)
    path = tmp_path / "undelivered-blocked.jsonl"
    worker = make_worker(blocked, path, logger._note)
    logger._workers["blocked"] = worker
    log_rows(logger, 1)
    assert blocked.entered.wait(5.0)
    log_rows(logger, *range(2, 8))
    assert epochs_of(path) == [2, 3, 4]  # the first is in the sink's hands, three may wait
    blocked.release.set()
    logger.drain_seconds = 10.0
    with pytest.warns(MettaWarning, match="did not take 3 records"):
        logger.close()
    assert [row.epoch for row in blocked.rows] == [1, 5, 6, 7]


def test_the_loss_is_reported_when_even_the_file_cannot_be_written(
    tmp_path: Path, blocked: BlockedSink
) -> None:
    path = tmp_path / "undelivered-blocked.jsonl"
    path.mkdir()
    logger = StatsLogger([blocked], run_dir=tmp_path, drain_seconds=0.0)
    log_rows(logger, 1)
    with pytest.warns(MettaWarning, match="did not take 1 records, which are lost"):
        logger.close()
