"""`python -m benchmarks.speed`: how fast metta trains, beside other libraries, on this machine."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.tables import say
from metta.errors import ConfigError, MettaError

if TYPE_CHECKING:
    from benchmarks.speed.job_commands import Selection
    from benchmarks.speed.workloads import Workload

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", allow_abbrev=False)
    configure(parser)
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except MettaError as error:
        say(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Measures steps per second, processor time and memory of whole training loops at equal settings. "
        "Jobs run in turn, each in a process of its own; runs that other processes disturbed are repeated; "
        "the first fifth of a run does not count."
    )
    parser.epilog = (
        "python -m benchmarks.speed w1 --peers sb3 cleanrl --python sb3=envs/sb3/bin/python "
        "--cleanrl ../cleanrl"
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="what to measure (default: w1)"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and their rows")
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="PEER",
        help="only these peers or rows of peers, none: metta alone (default: all that are installed)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", help="only these rows, of metta too (default: all)"
    )
    parser.add_argument(
        "--python",
        nargs="+",
        action="extend",
        default=[],
        metavar="PEER=PATH",
        help="the Python that has a peer, where it is not this one",
    )
    parser.add_argument("--cleanrl", metavar="DIR", help="the folder of CleanRL's ppo.py")
    parser.add_argument(
        "--row",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME:SETTING=VALUE,...",
        help="one more row of metta with these settings, e.g. metta-numpy:numerics.actor=numpy",
    )
    _add_measuring(parser)


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repetitions", type=int, default=5, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps of every job (default: the workload's own)"
    )
    parser.add_argument(
        "--quiet-cores",
        type=float,
        default=0.15,
        metavar="CORES",
        help="cores used by others above which a run is repeated (default: %(default)s)",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="of a disturbed run (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="after which a job is ended (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        default="bench",
        metavar="DIR",
        help="folder of results.jsonl, tables and plots (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and print tables; 1 where a job failed."""
    from benchmarks.speed.job_commands import check_names, find_workload, with_rows

    rows = _pairs(options.row, ":", "--row NAME:SETTING=VALUE,...")
    settings = {name: text.split(",") for name, text in rows.items()}
    named = options.workloads or ["w1"]
    workloads = {name: with_rows(find_workload(name), settings) for name in named}
    if options.list:
        return _list()
    _check_numbers(options)
    selection = _selection(options)
    check_names(workloads.values(), selection)
    return _measure(workloads, selection, options)


def _list() -> int:
    from benchmarks.speed.workloads import WORKLOADS

    width = max(map(len, WORKLOADS))
    for name, workload in WORKLOADS.items():
        say(f"{name:<{width}}  {workload.about}")
        say(f"{'':<{width}}    {', '.join(entry.name for entry in workload.entries)}")
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    if options.repetitions < 1 or options.retries < 0 or options.timeout <= 0:
        raise ConfigError(
            "bench needs at least --repetitions 1, --retries 0 and a --timeout above 0"
        )
    if options.steps is not None and options.steps < 1:
        raise ConfigError(f"--steps {options.steps} measures nothing; give 1 or more")


def _selection(options: argparse.Namespace) -> "Selection":
    from benchmarks.speed.job_commands import Selection

    return Selection(
        peers=options.peers,
        only=options.only,
        pythons=_pairs(options.python, "=", "--python PEER=PATH"),
        cleanrl=None if options.cleanrl is None else Path(options.cleanrl),
        steps=options.steps,
    )


def _pairs(texts: Sequence[str], between: str, usage: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(between)
        if not (name and found and value):
            raise ConfigError(f"{text!r} is not what is expected here: {usage}")
        pairs[name] = value
    return pairs


def _measure(
    workloads: "dict[str, Workload]", selection: "Selection", options: argparse.Namespace
) -> int:
    from benchmarks.speed.figures import draw_results, load_pyplot
    from benchmarks.speed.job_commands import jobs_of
    from benchmarks.speed.machine_use import require_proc
    from benchmarks.speed.report import markdown_table
    from benchmarks.speed.session import BenchSession
    from metta.files import atomic_write_text

    require_proc()
    load_pyplot()  # what is missing shows before hours of measuring, not after
    folder = Path(options.out)
    session = BenchSession(
        folder,
        repetitions=options.repetitions,
        quiet_cores=options.quiet_cores,
        retries=options.retries,
        timeout_seconds=options.timeout,
        say=lambda line: say(line, flush=True),
    )
    has_failed = False
    for name, workload in workloads.items():
        jobs, left_out = jobs_of(workload, selection)
        for line in left_out:
            say(f"{name}  {line}", flush=True)
        results = session.run(name, jobs)
        has_failed = has_failed or any(None in runs for runs in results.values())
        table = markdown_table(results, workload.baseline, session.is_disturbed)
        title = f"{name}: {workload.about}"
        say(f"\n{title}\n\n{table}\n", flush=True)
        atomic_write_text(folder / f"{name}.md", f"# {title}\n\n{table}\n")
        draw_results(folder / f"{name}.png", results, title)
    say(f"results are in {folder}")
    return 1 if has_failed else 0
