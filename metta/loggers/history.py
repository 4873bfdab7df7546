"""What a run's event log says about it, without what a crash took back."""

import math
import os
from collections.abc import Mapping

from metta.loggers.event_log import Event, read_events
from metta.loggers.sink import MetricRow

__all__ = ["metric_rows"]


def metric_rows(path: str | os.PathLike[str]) -> list[MetricRow]:
    """Rows of metrics in order, each once; numbers that were not finite are NaN.

    A run that was killed goes on from its newest checkpoint and logs again what came after it; its
    event `run_start`, or `rewind` where nobody records runs, says from which epoch, and its rows of later
    epochs before that do not count. Scores that came late are rows of their own, behind those of the epoch
    that they belong to.
    """
    rows: list[tuple[str, MetricRow]] = []
    late: dict[tuple[str, int], MetricRow] = {}
    for event in read_events(path):
        if event.kind in ("run_start", "rewind"):
            kept = int(event.payload.get("from_epoch", 0))
            rows = [(run, row) for run, row in rows if run != event.run or row.epoch <= kept]
            late = {at: row for at, row in late.items() if at[0] != event.run or at[1] <= kept}
        elif event.kind == "metrics":
            rows.append((event.run, _row(event, event.payload["metrics"])))
        elif event.kind == "evaluation" and "late_row" in event.payload["scores"]:
            row = _row(event, event.payload["scores"]["late_row"], is_late=True)
            late[event.run, row.epoch] = row
    if not late:
        return [row for _, row in rows]
    runs = {run: number for number, run in enumerate(dict.fromkeys(run for run, _ in rows))}
    both = [*rows, *((run, row) for (run, _), row in late.items())]
    both.sort(key=lambda one: (runs.get(one[0], len(runs)), one[1].epoch, one[1].is_late))
    return [row for _, row in both]


def _row(event: Event, numbers: Mapping[str, float | None], *, is_late: bool = False) -> MetricRow:
    metrics = {name: math.nan if n is None else n for name, n in numbers.items()}
    return MetricRow(event.payload["agent_step"], event.payload["epoch"], metrics, is_late)
