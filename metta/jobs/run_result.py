"""What came of a run, read from its event log: also from before it was resumed."""

import math
from pathlib import Path
from typing import Any

from metta.loggers.events.history import stream_rows
from metta.loggers.events.reader import placed_events
from metta.runs.comparison import last_evaluation
from metta.store.run_directory import RunDirectory

__all__ = ["read_result"]

_TIMED = ("run_start", "metrics", "heartbeat", "run_end")


def read_result(folder: Path) -> dict[str, Any]:
    """The result of a run as plain data.

    `score` is the mean return of its last evaluation over all simulations, `episodes` has the returns of
    its only simulation, `reward` is the mean return of the last 100 episodes of training. What is not known
    is None. `train_seconds` counts the time of every process that trained the run.
    """
    file = RunDirectory(folder).events_file
    evaluation = last_evaluation(file)
    scores = {} if evaluation is None else evaluation.scores
    episodes = [] if evaluation is None else list(evaluation.episodes.values())
    epoch = agent_step = 0
    reward: float | None = None
    for row in stream_rows(file, with_late_scores=False):
        epoch, agent_step = row.epoch, row.agent_step
        found = row.metrics.get("overview/reward", math.nan)
        reward = found if math.isfinite(found) else reward
    return {
        "epoch": epoch,
        "agent_step": agent_step,
        "score": sum(scores.values()) / len(scores) if scores else None,
        "episodes": episodes[0] if len(episodes) == 1 else [],
        "reward": reward,
        "train_seconds": _seconds(file),
    }


def _seconds(file: Path) -> float:
    """Time between the first and the last event of each process that wrote the log."""
    total, begin, last = 0.0, None, 0.0
    for _, event in placed_events(file, _TIMED):
        if event.kind == "run_start":
            total += 0.0 if begin is None else last - begin
            begin = event.time
        last = event.time
    return total + (0.0 if begin is None else last - begin)
