"""`StatsLogger`: each row goes to the event log and to all sinks, none of which can hold up training."""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from metta.errors import ConfigError, MettaError, MettaWarning
from metta.loggers.console import ConsoleSink
from metta.loggers.event_log import EventLog, read_events
from metta.loggers.history import metric_rows
from metta.loggers.sink import MetricRow, Sink
from metta.loggers.sink_worker import SinkWorker
from metta.loggers.wandb_run import WandbRun, WandbSink

__all__ = ["StatsLogger"]

_BACKLOG = 10_000


def _do_nothing(_: object) -> None: ...


class StatsLogger:
    """Fans rows out.

        with StatsLogger([CsvSink(run_dir / "metrics.csv")], run_dir=run_dir) as logger:
            logger.log({"losses/value_loss": 0.5}, agent_step=1024, epoch=1)

        StatsLogger(wandb_run=run, console=True)    # the same as [WandbSink(run), ConsoleSink()]

    The event log is written at once, and whoever opened it closes it. Each sink has a thread of its own:
    `log` never waits for it. A sink that fails keeps its rows and is tried again; a warning and an event
    `sink_failure` tell of it, and of its recovery. What it has not taken `drain_seconds` after `close`
    began goes to ``run_dir/undelivered-<sink>.jsonl``. After `close`, `log` opens everything again.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        *,
        event_log: EventLog | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        wandb_run: WandbRun | None = None,
        console: bool = False,
        drain_seconds: float = 10.0,
    ) -> None:
        self.event_log = event_log
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.drain_seconds = drain_seconds
        self._workers: dict[str, SinkWorker] = {}
        self._news: list[tuple[str, str]] = []
        self._news_lock = threading.Lock()
        for sink in sinks:
            self.add_sink(sink)
        if wandb_run is not None:
            self.add_sink(WandbSink(wandb_run))
        if console:
            self.add_sink(ConsoleSink())

    def add_sink(self, sink: Sink) -> None:
        """Send rows to one more sink from now on."""
        if sink.name in self._workers:
            raise ConfigError(f"there is a sink {sink.name!r} already; give each a name of its own")
        undelivered = self.run_dir and self.run_dir / f"undelivered-{sink.name}.jsonl"
        self._workers[sink.name] = SinkWorker(
            sink, self._note, undelivered=undelivered, backlog=_BACKLOG
        )

    @property
    def sinks(self) -> dict[str, Sink]:
        """Sinks by name."""
        return {name: worker.sink for name, worker in self._workers.items()}

    def log(
        self, metrics: Mapping[str, float], *, agent_step: int, epoch: int, is_late: bool = False
    ) -> None:
        """Take a row of metrics in; returns at once.

        Scores that are late go to sinks only: the event log has them in an event `evaluation`.
        """
        row = MetricRow(agent_step, epoch, dict(metrics), is_late)
        if self.event_log is not None and not is_late:
            payload = {"agent_step": agent_step, "epoch": epoch, "metrics": row.metrics}
            self.event_log.append("metrics", payload)
        for worker in self._workers.values():
            worker.put(row)
        self._tell()

    def rewind(self, epoch: int) -> MetricRow | None:
        """A run goes on after `epoch`, perhaps from before its last row: sinks follow the event log.

        Returns the last row that counts and did not come late, or None where the log has none.
        """
        log = self.event_log
        if log is None:
            return None
        try:
            rows = metric_rows(log.path)
            if rows and rows[-1].epoch > epoch:
                log.append("rewind", {"from_epoch": epoch})
                rows = metric_rows(log.path)
            if not rows and not any(event.kind == "metrics" for event in read_events(log.path)):
                return None  # a new log says nothing about what sinks have
        except (MettaError, OSError, KeyError, TypeError) as error:
            self._note("event log", f"cannot be read, so other files stay as they are: {error}")
            self._tell()
            return None
        self._rewrite_sinks(rows)
        return next((row for row in reversed(rows) if not row.is_late), None)

    def settle(self) -> None:
        """Late rows came: have sinks that are files show all rows in the order of their epochs."""
        log, deadline = self.event_log, time.monotonic() + self.drain_seconds
        if log is None:
            return
        workers = [one for one in self._workers.values() if hasattr(one.sink, "rewrite")]
        if not all(worker.flush(deadline) for worker in workers):
            return  # a sink that does not take rows is brought in line when the run is resumed
        try:
            self._rewrite_sinks(metric_rows(log.path))
        except (MettaError, OSError, KeyError, TypeError) as error:
            self._note("event log", f"cannot be read, so other files stay as they are: {error}")
            self._tell()

    def _rewrite_sinks(self, rows: list[MetricRow]) -> None:
        for name, sink in self.sinks.items():
            try:
                getattr(sink, "rewrite", _do_nothing)(rows)
            except OSError as error:
                self._note(name, f"could not be brought in line with the event log: {error}")
        self._tell()

    def _note(self, sink: str, text: str) -> None:
        """Keep news of a sink's thread for the thread that logs."""
        with self._news_lock:
            self._news.append((sink, text))

    def _tell(self) -> None:
        if not self._news:
            return
        with self._news_lock:
            news, self._news = self._news, []
        for sink, text in news:
            if self.event_log is not None:
                self.event_log.append("sink_failure", {"sink": sink, "message": text})
        for sink, text in news:
            warnings.warn(f"the {sink} sink {text}", MettaWarning, stacklevel=3)

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all sinks have every row, at most `drain_seconds`; True if they have."""
        deadline = time.monotonic() + (self.drain_seconds if seconds is None else seconds)
        done = [worker.flush(deadline) for worker in self._workers.values()]
        if self.event_log is not None:
            self.event_log.sync()
        self._tell()
        return all(done)

    def close(self) -> None:
        """Deliver what waits, close the sinks, and say what could not be delivered."""
        deadline = time.monotonic() + self.drain_seconds
        for worker in self._workers.values():
            worker.begin_close()  # all together: one that hangs takes no time from the others
        with contextlib.ExitStack() as stack:  # an interrupt while waiting must not lose rows
            stack.callback(self._tell)
            if self.event_log is not None:
                stack.callback(self.event_log.sync)
            for worker in self._workers.values():
                stack.callback(self._close_worker, worker, deadline)

    def _close_worker(self, worker: SinkWorker, deadline: float) -> None:
        lost = worker.close(deadline)
        if not lost:
            return
        where = self.run_dir and self.run_dir / f"undelivered-{worker.sink.name}.jsonl"
        kept = f"they are in {where}" if where else "there is no run directory to keep them in"
        self._note(worker.sink.name, f"did not take {lost} rows; {kept}")

    def __enter__(self) -> "StatsLogger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
