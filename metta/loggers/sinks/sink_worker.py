"""A thread between training and a sink: if the sink fails, training continues and records are kept."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from metta.loggers.events.append_file import AppendFile
from metta.loggers.events.plain_json import to_json
from metta.loggers.sink import MetricRow, Sink
from metta.secrets import scrub

__all__ = ["SinkWorker"]

_FIRST_PAUSE, _MAX_PAUSE, _MAX_CLOSING_PAUSE = 0.1, 30.0, 0.5
_LAST_MOMENT = 0.5

Report = Callable[[str, str], None]
"""Takes the name of a sink and what happened to it; called from the thread of the sink."""


class SinkWorker:
    """Delivers records to one sink in order, and tries one that failed again after a pause.

    At most `backlog` records wait in memory; older ones go to `undelivered`, as do those that wait when
    `close` runs out of time. Without such a file they are lost, and counted.
    """

    def __init__(
        self, sink: Sink, report: Report, *, undelivered: Path | None, backlog: int
    ) -> None:
        self.sink, self._report, self._undelivered = sink, report, undelivered
        self._rows: deque[MetricRow] = deque()
        self._backlog = backlog
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = self._closing = self._flush_wanted = False
        self._num_undelivered = 0

    def put(self, row: MetricRow) -> None:
        """Queue a record; never waits for the sink."""
        with self._changed:
            if self._closing or self._thread is None or not self._thread.is_alive():
                self._start()
            self._rows.append(row)
            # the sink may be writing the first record
            surplus = [self._take_second() for _ in range(len(self._rows) - self._backlog - 1)]
            self._changed.notify_all()
        self._spill(surplus)

    def _take_second(self) -> MetricRow:
        row = self._rows[1]
        del self._rows[1]
        return row

    def _start(self) -> None:
        """Begin, or begin again after `close`; a thread that still hangs in the sink is kept."""
        self._closing = False
        if self._thread is None or not self._thread.is_alive():
            name = f"metta-sink-{self.sink.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def flush(self, deadline: float) -> bool:
        """Wait until the sink has everything, at most until `deadline` (monotonic); True if it has."""
        with self._changed:
            self._flush_wanted = self._thread is not None and self._thread.is_alive()
            self._changed.notify_all()
            while self._rows or self._flush_wanted or self._busy:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
        return True

    def begin_close(self) -> None:
        """Let the thread end when it has delivered everything."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, deadline: float) -> int:
        """Deliver what waits, at most until `deadline`; the rest goes to the undelivered file.

        Returns how many records the sink did not take since the worker was opened.
        """
        self.begin_close()
        try:
            if self._thread is not None:
                self._thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            with self._changed:
                rows = list(self._rows)
                self._rows.clear()
                self._changed.notify_all()
            self._spill(rows)
        if rows and self._thread is not None:
            self._thread.join(_LAST_MOMENT)  # one that only failed can close its sink now
        lost, self._num_undelivered = self._num_undelivered, 0
        return lost

    def _spill(self, rows: list[MetricRow]) -> None:
        if not rows:
            return
        try:
            if self._undelivered is not None:
                _append_rows(self._undelivered, rows)
        except OSError as error:
            self._report(
                self.sink.name, f"did not take {len(rows)} records, which are lost: {error}"
            )
        else:
            self._num_undelivered += len(rows)

    def _run(self) -> None:
        pause, failing = _FIRST_PAUSE, False
        while (row := self._next()) is not None or not self._closing:
            problem = self._attempt(row)
            if problem is None:
                pause = _FIRST_PAUSE
                if failing and row is not None:
                    failing = False
                    self._report(
                        self.sink.name, "works again; the records that waited are delivered"
                    )
                continue
            if not failing:
                failing = True
                self._report(
                    self.sink.name, f"failed ({problem}); records wait and are tried again"
                )
            self._pause(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        problem = _call(self.sink.close)
        if problem is not None:
            self._report(self.sink.name, f"failed to close ({problem})")
        with self._changed:
            self._busy = self._flush_wanted = False
            self._changed.notify_all()

    def _next(self) -> MetricRow | None:
        """The first record, which stays in the queue until it is delivered; None: flush, or the end."""
        with self._changed:
            while not self._rows and not self._closing and not self._flush_wanted:
                self._changed.wait()
            self._busy = True
            return self._rows[0] if self._rows else None

    def _attempt(self, row: MetricRow | None) -> str | None:
        """Write a record, or flush for None; returns what went wrong."""
        problem = _call(self.sink.flush) if row is None else _call(lambda: self.sink.write(row))
        with self._changed:
            self._busy = False
            if row is None:
                self._flush_wanted = False
            elif problem is None and self._rows and self._rows[0] is row:
                self._rows.popleft()
            self._changed.notify_all()
        return problem

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while self._rows and (left := until - time.monotonic()) > 0:
                if self._closing:
                    self._changed.wait(min(left, _MAX_CLOSING_PAUSE))
                    return
                self._changed.wait(left)


def _append_rows(path: Path, rows: list[MetricRow]) -> None:
    plain = [
        {"agent_step": row.agent_step, "epoch": row.epoch, "metrics": row.metrics} for row in rows
    ]
    with contextlib.closing(AppendFile(path)) as file:
        file.append("".join(f"{to_json(row)}\n" for row in plain).encode())


def _call(function: Callable[[], None]) -> str | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001  # reason: a sink may fail in any way, and never stops training
        return scrub(f"{type(error).__name__}: {error}")
    return None
