"""What a run's event log says about it, without what a crash took back."""

import math
import os

from metta.loggers.event_log import read_events
from metta.loggers.sink import MetricRow

__all__ = ["metric_rows"]


def metric_rows(path: str | os.PathLike[str]) -> list[MetricRow]:
    """Rows of metrics in order, each once; numbers that were not finite are NaN.

    A run that was killed goes on from its newest checkpoint and logs again what came after it; its
    event `run_start`, or `rewind` where nobody records runs, says from which epoch, and its rows of later
    epochs before that do not count.
    """
    rows: list[tuple[str, MetricRow]] = []
    for event in read_events(path):
        if event.kind in ("run_start", "rewind"):
            kept = int(event.payload.get("from_epoch", 0))
            rows = [(run, row) for run, row in rows if run != event.run or row.epoch <= kept]
        elif event.kind == "metrics":
            found = event.payload["metrics"]
            metrics = {name: math.nan if n is None else n for name, n in found.items()}
            row = MetricRow(event.payload["agent_step"], event.payload["epoch"], metrics)
            rows.append((event.run, row))
    return [row for _, row in rows]
