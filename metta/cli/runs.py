"""`metta runs`: which runs there are, and how they stand."""

import argparse
import datetime
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metta.cli.resume import find_run

__all__ = ["RunSummary", "add_parser", "run", "summarize"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `metta`."""
    parser = commands.add_parser(
        "runs",
        help="list runs, or show one",
        description="Lists the runs below a folder, newest last, or shows one of them.",
        allow_abbrev=False,
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="show this run only, with its scores")
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help="where runs are (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per run, for scripts")


def run(options: argparse.Namespace) -> int:
    """Print the table, or one run."""
    output = Path(options.output)
    if options.run is not None:
        folders = [find_run(options.run, output)]
    else:
        folders = sorted((file.parent for file in output.glob("*/config.yaml")), key=_age)
    summaries = [summarize(folder) for folder in folders]
    if options.json:
        for summary in summaries:
            print(json.dumps(vars(summary)))
    elif options.run is not None:
        print(_details(summaries[0]))
    elif summaries:
        print(_table(summaries))
    else:
        print(f"there are no runs in {output}")
    return 0


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
    from metta.train.train_config import TrainingConfig

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


def _events(file: Path) -> Iterable[Any]:
    from metta.loggers.event_log import read_events

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


def _age(folder: Path) -> float:
    return (folder / "config.yaml").stat().st_mtime


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def _table(summaries: list[RunSummary]) -> str:
    rows = [("run", "environment", "status", "steps", "return", "score", "updated")]
    for run in summaries:
        share = f"{run.agent_step:,} ({min(run.agent_step / run.total_timesteps, 1):.0%})"
        numbers = share, _shown(run.reward), _shown(run.score)
        rows.append((run.name, run.env, run.status, *numbers, run.updated))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
             for row in rows]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _details(summary: RunSummary) -> str:
    shown = {
        **vars(summary),
        "reward": _shown(summary.reward),
        "score": _shown(summary.score),
    }
    checkpoints = sorted((Path(summary.path) / "checkpoints").glob("epoch_*"))
    shown["checkpoints"] = ", ".join(folder.name for folder in checkpoints) or "-"
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {'-' if v is None else v}" for name, v in shown.items())
