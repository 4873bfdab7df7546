"""The history of a run, read from its event log, without epochs that a crash lost."""

import bisect
import contextlib
import itertools
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from metta.errors import EventLogError
from metta.loggers.events.lines import Event, has_check, parse_event, whole_number
from metta.loggers.events.reader import (
    ChainCheck,
    bad_line,
    lines_backwards,
    lines_from,
    open_log,
    placed_events,
)
from metta.loggers.sink import MetricRow

__all__ = [
    "Continuation",
    "LogTail",
    "came_late",
    "last_event",
    "metric_rows",
    "row_of",
    "stream_events",
    "stream_rows",
    "taken_back_to",
]

TAIL_BYTES = 16 * 2**20
"""Bytes of a log that a resuming run reads and checks; more only if a table lacks older records."""
_MARKERS = (b"run_start", b"rewind", b"log_damage")
_LATE = "late_row"


def metric_rows(path: str | os.PathLike[str]) -> list[MetricRow]:
    """Records in order, each once; numbers that were not finite are NaN.

    A run that was killed continues from its newest checkpoint and logs again what came after it; its
    event `run_start` (or `rewind`, if runs are not recorded) has the epoch, and earlier records of later
    epochs do not count. Late scores are separate records, after those of the epoch they belong to.
    """
    return list(stream_rows(path))


def stream_rows(
    path: str | os.PathLike[str], *, with_late_scores: bool = True
) -> Iterator[MetricRow]:
    """`metric_rows`, one by one: a log may be larger than the memory. Each kind is read separately."""
    if not with_late_scores:
        yield from (row_of(event, path) for event in stream_events(path, {"metrics"}))
        return
    late = (event for event in stream_events(path, {"evaluation"}) if came_late(event))
    for event in _by_epoch(stream_events(path, {"metrics"}), late):
        yield row_of(event, path)


def _by_epoch(rows: Iterator[Event], late: Iterator[Event]) -> Iterator[Event]:
    """Both in the order of their epochs, run by run; each has that order already."""
    waiting, runs_before, run = next(late, None), set[str](), ""
    for event in rows:
        if event.run != run:
            runs_before.add(run)
            run = event.run
        while waiting is not None and (
            waiting.run in runs_before
            or (waiting.run == run and waiting.payload["epoch"] < event.payload["epoch"])
        ):
            yield waiting
            waiting = next(late, None)
        yield event
    if waiting is not None:
        yield waiting
        yield from late


def came_late(event: Event) -> bool:
    """Whether it has the scores of an evaluation in the background: no event `metrics` has them."""
    scores = event.payload.get("scores") if event.kind == "evaluation" else None
    return isinstance(scores, dict) and _LATE in scores


def stream_events(path: str | os.PathLike[str], kinds: Collection[str]) -> Iterator[Event]:
    """Events of these kinds, one by one, without those of epochs that were taken back."""
    rewinds = _Rewinds()
    with open_log(path) as (stream, _):
        for place, line in lines_from(stream, 0, path):
            if any(marker in line for marker in _MARKERS):
                with contextlib.suppress(ValueError):  # reported below
                    rewinds.note(place, parse_event(line))
    for place, event in placed_events(path, kinds):
        if rewinds.counts(place, event.run, _epoch_of(event, path)):
            yield event


def last_event(path: str | os.PathLike[str], kind: str) -> Event | None:
    """The newest event of a kind; None if the last `TAIL_BYTES` of the log have none."""
    with open_log(path) as (stream, size):
        for place, line in lines_backwards(stream, size, path):
            if size - place > TAIL_BYTES:
                break
            if kind.encode() in line:
                with contextlib.suppress(ValueError):  # damage is reported elsewhere
                    event = parse_event(line)
                    if event.kind == kind:
                        return event
    return None


def _epoch_of(event: Event, path: str | os.PathLike[str]) -> int:
    """The epoch of an event; 0 if it has none."""
    if event.kind == "heartbeat":
        return 0  # heartbeats always count
    try:
        return whole_number(event.payload.get("epoch", 0), "epoch")
    except ValueError as reason:
        raise bad_line(path, f"event {event.sequence}", event.kind.encode(), reason) from reason


def row_of(event: Event, path: str | os.PathLike[str] = "the log") -> MetricRow:
    """The record of an event `metrics`, or of late scores; `EventLogError` if it has none."""
    payload, is_late = event.payload, came_late(event)
    numbers = payload["scores"][_LATE] if is_late else payload.get("metrics")
    try:
        step, epoch = (whole_number(payload.get(name), name) for name in ("agent_step", "epoch"))
        return MetricRow(step, epoch, _numbers(numbers), is_late)
    except ValueError as reason:
        raise bad_line(path, f"event {event.sequence}", event.kind.encode(), reason) from reason


def _numbers(metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, dict):
        raise ValueError(f"metrics={metrics!r:.80} must be a mapping")
    found: dict[str, float] = {}
    for name, number in metrics.items():
        if number is not None and not isinstance(number, int | float):
            raise ValueError(f"{name!r:.80} is {number!r:.80}, which is not a number")
        found[name] = math.nan if number is None else number
    return found


def taken_back_to(event: Event, path: str | os.PathLike[str] = "the log") -> int | None:
    """The epoch after which records before this event do not count; None for most events."""
    if event.kind not in ("run_start", "rewind"):
        return None
    try:
        return whole_number(event.payload.get("from_epoch", 0), "from_epoch")
    except ValueError as reason:
        raise bad_line(path, f"event {event.sequence}", event.kind.encode(), reason) from reason


class _Rewinds:
    """Where in a log records were taken back."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}
        self._epochs: dict[str, list[int]] = {}
        """Run -> the last epoch that still counts, in the order of the places."""
        self._is_settled = False

    def note(self, place: int, event: Event) -> None:
        """Add an event; call it in order."""
        epoch = taken_back_to(event)
        if epoch is not None:
            self._places.setdefault(event.run, []).append(place)
            self._epochs.setdefault(event.run, []).append(epoch)

    def counts(self, place: int, run: str, epoch: int) -> bool:
        """Whether what a log has at a place about an epoch was not taken back later."""
        if not self._is_settled:
            self._is_settled = True
            for run_id, epochs in self._epochs.items():
                self._epochs[run_id] = [*itertools.accumulate(reversed(epochs), min)][::-1]
        later = bisect.bisect_right(self._places.get(run, []), place)
        epochs = self._epochs.get(run, [])
        return later == len(epochs) or epoch <= epochs[later]


class LogTail:
    """The records that count at the end of a log, as far back as they are wanted, and what is wrong there.

    All records of an epoch are in it, or none. Iterating reads them from the file again; a tail of any
    length takes little memory.
    """

    def __init__(
        self, path: Path, tail_bytes: int | None = None, *, of_late_scores: bool = False
    ) -> None:
        self.path = path
        self._kind = "evaluation" if of_late_scores else "metrics"
        self.problems: list[str] = []
        """Lines that were changed, removed or swapped after they were written, or are not events."""
        self.was_damaged = False
        """Whether an earlier start found the log damaged."""
        self.has_metrics = False
        """Whether the log has records, including those that do not count."""
        self.first: MetricRow | None = None
        self.last: MetricRow | None = None
        self._size = tail_bytes or TAIL_BYTES
        self._read_back()

    @property
    def is_whole(self) -> bool:
        """Whether it reaches back to the beginning of the log."""
        return self._begin == 0

    def reach(self, epoch: int) -> None:
        """Reach back until a record of this epoch, or of an earlier one, is among them."""
        while not self.is_whole and (self.first is None or self.first.epoch > epoch):
            self._size *= 4
            self._read_back()

    def __iter__(self) -> Iterator[MetricRow]:
        with open_log(self.path) as (stream, _):
            yield from self._rows(stream)

    def _read_back(self) -> None:
        """Find the lines of the tail; four times as many bytes if no record is among them."""
        with open_log(self.path) as (stream, size):
            while True:
                self._begin = _line_begin(stream, max(0, size - self._size))
                self._inspect(stream)
                self.first = self.last = None
                for row in self._rows(stream):
                    self.first, self.last = self.first or row, row
                if self.first is not None or self.is_whole:
                    return
                self._size *= 4

    def _inspect(self, stream: BinaryIO) -> None:
        """Check every line, and note where records were taken back."""
        self._rewinds, self.problems = _Rewinds(), []
        self.was_damaged = self.has_metrics = False
        check = ChainCheck(0 if self.is_whole else None)
        for place, line in lines_from(stream, self._begin, self.path):
            self.has_metrics |= b'"metrics"' in line
            event = None
            try:
                if not has_check(line) or any(marker in line for marker in _MARKERS):
                    event = parse_event(line)
                    self._rewinds.note(place, event)
                    self.was_damaged |= event.kind == "log_damage"
                    if event.kind == "metrics":
                        row_of(event, self.path)
                problem = check.add(line, event)
            except (ValueError, EventLogError) as reason:
                problem = f"the line is not an event: {reason}"
                check = ChainCheck(None)
            if problem:
                self.problems.append(f"at byte {place:,} {problem}")

    def _rows(self, stream: BinaryIO) -> Iterator[MetricRow]:
        rows = self._rows_that_count(stream)
        if self.is_whole:
            return rows
        cut = next(rows, None)  # other records of its epoch may be before the tail
        return (row for row in rows if cut is None or row.epoch != cut.epoch)

    def _rows_that_count(self, stream: BinaryIO) -> Iterator[MetricRow]:
        kind = self._kind.encode()
        for place, line in lines_from(stream, self._begin, self.path):
            if kind not in line:
                continue
            try:
                event = parse_event(line)
                if event.kind != self._kind or (event.kind != "metrics" and not came_late(event)):
                    continue
                row = row_of(event, self.path)
            except (ValueError, EventLogError):
                continue  # it is among the problems
            if self._rewinds.counts(place, event.run, row.epoch):
                yield row


@dataclass(frozen=True)
class Continuation:
    """What sinks need to follow a run that continues after an epoch."""

    tail: LogTail
    """The records that count."""
    epoch: int
    agent_step: int
    is_as_marked: bool
    """Whether the log has all that it had when the checkpoint was saved."""

    @property
    def keeps_others(self) -> bool:
        """Whether a sink keeps records up to `epoch` that the log lacks: the log may be incomplete."""
        return not self.is_as_marked or self.tail.was_damaged or bool(self.tail.problems)


def _line_begin(stream: BinaryIO, place: int) -> int:
    """Where the first line at or after a place begins."""
    if place > 0:
        stream.seek(place - 1)
        place += len(stream.readline()) - 1
    return place
