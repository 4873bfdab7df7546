"""`metta runs`: lists runs and their status."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import URL_VARIABLE, add_runs
from metta.cli.policy_names import find_run
from metta.cli.tables import say, table
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.runs.summary import RunSummary

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Lists the runs below a folder, newest last, or shows one of them: its status, its last "
        "metrics, scores, policies and replays."
    )
    parser.epilog = (
        "With --database, runs of other machines are listed too; one that did not end and logged no "
        "event for 10 minutes is silent. `metta stats ingest` fills the database."
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="show this run only, in full; also: metta runs show RUN",
    )
    parser.add_argument("shown", nargs="?", metavar="", help=argparse.SUPPRESS)
    add_runs(parser)
    parser.add_argument(
        "--database",
        metavar="URL",
        help="read a statistics database instead of folders: a SQLite file, postgresql://..., or "
        f"env:{URL_VARIABLE}",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per run, for scripts")


def run(options: argparse.Namespace) -> int:
    """Print the table, or one run."""
    wanted = _wanted(options.run, options.shown)
    if options.database is not None:
        from metta.runs.database import summaries_from_database

        summaries, place = summaries_from_database(options.database, wanted), "the database"
    else:
        summaries, place = _from_folders(Path(options.runs), wanted), options.runs
    if wanted is not None:
        say(_one(summaries[0], options))
    elif options.json:
        for summary in summaries:
            say(json.dumps(vars(summary)))
    else:
        say(_table(summaries) if summaries else f"there are no runs in {place}")
        if options.database is None and (sweeps := _sweeps(Path(options.runs))):
            say(sweeps)
    return 0


def _sweeps(output: Path) -> str:
    """How many sweeps there are, each with runs of its own, and the command that lists them."""
    from metta.sweeps.lock import LOCK_FILE

    folders = output.iterdir() if output.is_dir() else ()
    names = sorted(folder.name for folder in folders if (folder / LOCK_FILE).is_file())
    if not names:
        return ""
    count = "1 sweep" if len(names) == 1 else f"{len(names)} sweeps"
    runs = shlex.join(["metta", "runs", "--runs", str(output / names[-1])])
    where = "" if output == Path("runs") else f" {shlex.join(['--runs', str(output)])}"
    return f"and {count}: metta sweep status{where} lists them; {runs} lists the runs of one"


def _wanted(first: str | None, second: str | None) -> str | None:
    """The run that the arguments name, with or without `show` before it."""
    if second is None:
        if first == "show":
            raise ConfigError("RUN is missing: metta runs show RUN; `metta runs` lists them")
        return first
    if first != "show":
        raise ConfigError(
            f"{first!r} and {second!r} are two runs; one is shown: metta runs show RUN"
        )
    return second


def _from_folders(output: Path, wanted: str | None) -> list["RunSummary"]:
    from metta.runs.summary import summarize

    if wanted is not None:
        return [summarize(find_run(wanted, output))]
    folders = sorted((file.parent for file in output.glob("*/config.yaml")), key=_age)
    return [summarize(folder) for folder in folders]


def _one(summary: "RunSummary", options: argparse.Namespace) -> str:
    """All of one run, as text or JSON."""
    if options.database is not None:
        from metta.runs.database import details_from_database

        found = details_from_database(options.database, summary.path)
    else:
        from metta.runs.details import details_from_log

        found = details_from_log(Path(summary.path) / "events.jsonl")
    if options.json:
        return json.dumps({**vars(summary), **found.to_dict()})
    return "\n".join([_details(summary, is_folder=options.database is None), *found.lines()])


def _age(folder: Path) -> float:
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:  # a link to nowhere, or just removed
        return 0.0


def _share(run: "RunSummary") -> str:
    if run.total_timesteps <= 0:  # not known, e.g. if its configuration cannot be read
        return f"{run.agent_step:,}" if run.agent_step else "-"
    return f"{run.agent_step:,} ({min(run.agent_step / run.total_timesteps, 1):.0%})"


def _table(summaries: list["RunSummary"]) -> str:
    rows = [("run", "environment", "status", "steps", "return", "score", "updated")]
    for run in summaries:
        numbers = _share(run), shown_number(run.reward), shown_number(run.score)
        rows.append((run.name, run.env, run.status, *numbers, run.updated))
    return table(rows)


def _checkpoint_names(folder: Path) -> list[str]:
    from metta.errors import UnsafeFileError
    from metta.store.run_directory import RunDirectory

    try:
        return sorted(path.name for path in RunDirectory(folder).checkpoint_dir.glob("epoch_*"))
    except UnsafeFileError as error:
        return [str(error)]


def _details(summary: "RunSummary", *, is_folder: bool) -> str:
    shown = {
        **vars(summary),
        "reward": shown_number(summary.reward),
        "score": shown_number(summary.score),
    }
    if is_folder:
        shown["checkpoints"] = ", ".join(_checkpoint_names(Path(summary.path))) or "-"
    else:
        shown["id"] = shown.pop("path")
    width = max(map(len, shown))
    values = {name: "-" if value is None else str(value) for name, value in shown.items()}
    return "\n".join(f"{name:<{width}}  {printable(value)}" for name, value in values.items())
