"""`metta runs`: which runs there are, and how they stand."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.resume import find_run

if TYPE_CHECKING:
    from metta.cli.run_summary import RunSummary

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Lists the runs below a folder, newest last, or shows one of them."
    parser.add_argument("run", nargs="?", metavar="RUN", help="show this run only, with its scores")
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help="where runs are (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per run, for scripts")


def run(options: argparse.Namespace) -> int:
    """Print the table, or one run."""
    from metta.cli.run_summary import summarize

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


def _age(folder: Path) -> float:
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:  # a link to nowhere, or just removed
        return 0.0


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def _share(run: "RunSummary") -> str:
    if run.total_timesteps <= 0:  # its configuration cannot be read
        return "-"
    return f"{run.agent_step:,} ({min(run.agent_step / run.total_timesteps, 1):.0%})"


def _table(summaries: list["RunSummary"]) -> str:
    rows = [("run", "environment", "status", "steps", "return", "score", "updated")]
    for run in summaries:
        numbers = _share(run), _shown(run.reward), _shown(run.score)
        rows.append((run.name, run.env, run.status, *numbers, run.updated))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
             for row in rows]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _details(summary: "RunSummary") -> str:
    shown = {
        **vars(summary),
        "reward": _shown(summary.reward),
        "score": _shown(summary.score),
    }
    checkpoints = sorted((Path(summary.path) / "checkpoints").glob("epoch_*"))
    shown["checkpoints"] = ", ".join(folder.name for folder in checkpoints) or "-"
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {'-' if v is None else v}" for name, v in shown.items())
