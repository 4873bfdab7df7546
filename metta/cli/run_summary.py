"""How a run stands, read from the files it wrote."""

import datetime
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.loggers.event_log import Event, read_events
from metta.train.train_config import TrainingConfig

__all__ = ["RunSummary", "summarize"]


@dataclass
class RunSummary:
    """How a run stands, as its files tell."""

    name: str
    env: str
    status: str
    """`running`, `done`, `stopped`, or `died` where it ended without a word."""
    epoch: int
    agent_step: int
    total_timesteps: int
    reward: float | None
    """Mean return of the last 100 episodes."""
    score: float | None
    """Mean return of the last evaluation."""
    updated: str
    reason: str | None
    """Why it ended."""
    path: str


def summarize(folder: Path) -> RunSummary:
    """Read what a run wrote about itself; works while it runs, and for broken ones."""
    config = TrainingConfig.from_yaml(folder / "config.yaml")
    events = folder / "events.jsonl"
    row: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    ended: dict[str, Any] | None = None
    for event in _events(events):
        if event.kind == "metrics":
            row, numbers = event.payload, numbers | event.payload["metrics"]
        elif event.kind in ("run_start", "run_end"):
            ended = event.payload if event.kind == "run_end" else None
    step, total = int(row.get("agent_step", 0)), config.trainer.total_timesteps
    status = "running" if _is_at_work(folder) else "died"
    if ended is not None:
        status = "done" if step >= total else "stopped"
    scores = [v for k, v in numbers.items() if k.startswith("eval_") and k.endswith("/score")]
    changed = events if events.exists() else folder
    updated = datetime.datetime.fromtimestamp(changed.stat().st_mtime)
    return RunSummary(
        name=folder.name,
        env=config.env,
        status=status,
        epoch=int(row.get("epoch", 0)),
        agent_step=step,
        total_timesteps=total,
        reward=numbers.get("overview/reward"),
        score=sum(scores) / len(scores) if scores else None,
        updated=updated.isoformat(sep=" ", timespec="seconds"),
        reason=None if ended is None else ended["reason"],
        path=str(folder),
    )


def _events(file: Path) -> Iterable[Event]:
    return read_events(file) if file.exists() else ()


def _is_at_work(folder: Path) -> bool:
    """Whether the process that took the run's lock still lives; the lock itself is left alone."""
    try:
        about = json.loads((folder / "run.lock").read_text())
        if about["host"] != socket.gethostname():
            return True  # nothing can be known from here
        os.kill(about["pid"], 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
