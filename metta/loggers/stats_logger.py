"""`StatsLogger`: each record goes to the event log and to all sinks; no sink can hold up training."""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from metta.errors import ConfigError, MettaError, MettaWarning
from metta.loggers.events.history import Continuation, LogTail
from metta.loggers.events.log import EventLog
from metta.loggers.sink import MetricRow, Sink
from metta.loggers.sinks.console import ConsoleSink
from metta.loggers.sinks.sink_worker import SinkWorker
from metta.loggers.sinks.wandb_run import WandbRun, WandbSink

__all__ = ["StatsLogger"]

_BACKLOG = 10_000
_MAX_PROBLEMS = 20


class StatsLogger:
    """Writes records to the event log and to sinks.

        with StatsLogger([CsvSink(run_dir / "metrics.csv")], run_dir=run_dir) as logger:
            logger.log({"losses/value_loss": 0.5}, agent_step=1024, epoch=1)

        StatsLogger(wandb_run=run, console=True)    # the same as [WandbSink(run), ConsoleSink()]

    The event log is written at once; the code that opened it closes it. Each sink has its own thread:
    `log` never waits for it. The records of a sink that fails are kept and tried again; a warning and an
    event `sink_failure` report it, and its recovery. What it has not taken `drain_seconds` after `close`
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
        """Send records to one more sink from now on."""
        if sink.name in self._workers:
            raise ConfigError(f"there is a sink {sink.name!r} already; give each sink its own name")
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
        """Log a record; returns at once.

        Late scores go to sinks only: the event log has them in an event `evaluation`.
        """
        row = MetricRow(agent_step, epoch, dict(metrics), is_late)
        if self.event_log is not None and not is_late:
            payload = {"agent_step": agent_step, "epoch": epoch, "metrics": row.metrics}
            self.event_log.append("metrics", payload)
        for worker in self._workers.values():
            worker.put(row)
        self._report_news()

    def log_constants(
        self, constants: Mapping[str, float], *, agent_step: int, epoch: int, as_event: bool
    ) -> None:
        """Log numbers that do not change during training, once, to the sinks that take them.

        The event log has them as an event `hyperparameters`, if `as_event`.
        """
        if not constants:
            return
        row = MetricRow(agent_step, epoch, dict(constants))
        if as_event and self.event_log is not None:
            payload = {"agent_step": agent_step, "epoch": epoch, "values": row.metrics}
            self.event_log.append("hyperparameters", payload)
        for worker in self._workers.values():
            if getattr(worker.sink, "takes_constants", False):
                worker.put(row)

    def rewind(self, epoch: int, agent_step: int | None = None) -> MetricRow | None:
        """Continue after `epoch`, perhaps from before the last record: sinks follow the event log.

        A log that lost lines since its checkpoint is a warning and an event `log_damage`; sinks then keep
        the records that they have. Returns the last record that counts and was not late, or None if the
        log has none or is damaged.
        """
        log = self.event_log
        if log is None:
            return None
        try:
            tail = LogTail(log.path)
            if tail.last is not None and tail.last.epoch > epoch:
                log.append("rewind", {"from_epoch": epoch})
                tail = LogTail(log.path)
        except (MettaError, OSError) as error:
            self._note("event log", f"cannot be read, so other files stay as they are: {error}")
            self._report_news()
            return None
        problems = [*log.damage, *tail.problems]
        if problems:
            self._report_damage(log, tail, problems, epoch)
        elif not tail.has_metrics:
            return None  # a new log does not decide what sinks have
        last = tail.last
        if agent_step is None:
            agent_step = 0 if last is None else last.agent_step
        self._rewrite(Continuation(tail, epoch, agent_step, log.is_as_marked))
        return None if problems else last

    def _report_damage(self, log: EventLog, tail: LogTail, problems: list[str], epoch: int) -> None:
        if log.damage or not tail.was_damaged:
            log.append("log_damage", {"problems": problems[:_MAX_PROBLEMS], "from_epoch": epoch})
        more = len(problems) - 1
        text = f"{log.path} is damaged: {problems[0]}" + (f" (and {more} more)" if more else "")
        reached = 0 if tail.last is None else tail.last.epoch
        if reached < epoch:
            text += f"; the records of epochs {reached + 1} to {epoch} are not in it"
        text += "; the run continues, and other files keep the records that they have"
        warnings.warn(text, MettaWarning, stacklevel=4)

    def _rewrite(self, continuation: Continuation) -> None:
        for name, sink in self.sinks.items():
            rewrite = getattr(sink, "rewrite", None)
            try:
                message = rewrite(continuation) if rewrite is not None else None
            except (MettaError, OSError) as error:
                message = f"could not be brought in line with the event log: {error}"
            if message:
                self._note(name, message)
        self._report_news()

    def _note(self, sink: str, text: str) -> None:
        """Keep a message of a sink's thread for the thread that logs."""
        with self._news_lock:
            self._news.append((sink, text))

    def _report_news(self) -> None:
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
        """Wait until all sinks have every record, at most `drain_seconds`; True if they have."""
        deadline = time.monotonic() + (self.drain_seconds if seconds is None else seconds)
        done = [worker.flush(deadline) for worker in self._workers.values()]
        if self.event_log is not None:
            self.event_log.sync()
        self._report_news()
        return all(done)

    def close(self) -> None:
        """Deliver what waits, close the sinks, and report what could not be delivered."""
        deadline = time.monotonic() + self.drain_seconds
        for worker in self._workers.values():
            worker.begin_close()  # all together: one that hangs takes no time from the others
        with contextlib.ExitStack() as stack:  # an interrupt while waiting must not lose records
            stack.callback(self._report_news)
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
        self._note(worker.sink.name, f"did not take {lost} records; {kept}")

    def __enter__(self) -> "StatsLogger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
