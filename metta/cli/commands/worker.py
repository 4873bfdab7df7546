"""`metta worker`: does jobs of a queue: evaluations, and runs of sweeps and of several seeds."""

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import add_database, database_of
from metta.cli.own_envs import importable_env
from metta.cli.tables import say
from metta.errors import ConfigError
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.jobs.job import Job
    from metta.jobs.worker_settings import WorkerSettings

__all__ = ["configure", "run"]

_LOOK_SECONDS = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Does jobs that training, `metta eval`, `metta sweep` and `metta seeds` post to a database, one "
        "after the other, until Ctrl-C. A job whose worker dies is done again by another one."
    )
    parser.epilog = (
        "metta worker --database postgresql://metta:env:DATABASE_PASSWORD@host/metta --runs /shared/runs. "
        "Policies are read by the paths that jobs name, so machines share these folders. Jobs are data, "
        "never code; environments of your own are imported only if --env names them."
    )
    add_database(parser)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)"
    )
    parser.add_argument(
        "--kinds", metavar="KIND,...", help="take these jobs only: evaluate, train (default: all)"
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUP",
        help="serve this group only, e.g. sweep/first; may be given more than once",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="an environment of your own that jobs may use, e.g. my_envs.py:Maze; its module is imported",
    )
    parser.add_argument(
        "--idle",
        type=float,
        metavar="SECONDS",
        help="end when there was no job for so long (default: wait for jobs until Ctrl-C)",
    )


def run(options: argparse.Namespace) -> int:
    """Do jobs until Ctrl-C, or until none came for --idle seconds."""
    settings = _settings(options)
    if options.workers > 1:
        _serve_with_several(settings, options.workers)
        return 0
    import os

    from metta.database.patience import patiently
    from metta.jobs.ledger import JobLedger
    from metta.jobs.worker import work
    from metta.jobs.worker_names import release_dead, worker_name

    with JobLedger(settings.database) as ledger:
        ledger.require_usable()
        patiently(lambda: release_dead(ledger))
        say(f"waits for jobs of {ledger.url}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        work(settings, worker_name(os.getpid()), _report)
    return 0


def _settings(options: argparse.Namespace) -> "WorkerSettings":
    if options.workers < 1:
        raise ConfigError(f"--workers {options.workers}; give 1 or more")
    if options.idle is not None and not options.idle >= 0:
        raise ConfigError(f"--idle {options.idle:g}; give a number of seconds, 0 or more")
    from metta.envs.env_ids import module_of
    from metta.jobs.kinds import require_kinds
    from metta.jobs.worker_settings import WorkerSettings

    modules = []
    for env in options.env:
        module = module_of(importable_env(env))
        if module is None:
            raise ConfigError(f"--env {env!r} names no module; write my_envs.py:Maze")
        modules.append(module)
    kinds = tuple((options.kinds or "").replace(",", " ").split())
    require_kinds(kinds)
    return WorkerSettings(
        database_of(options),
        runs=str(Path(options.runs).absolute()),
        kinds=kinds,
        groups=tuple(options.group),
        modules=tuple(modules),
        idle_seconds=options.idle,
    )


def _serve_with_several(settings: "WorkerSettings", count: int) -> None:
    """Several processes, of which those that die are replaced."""
    from metta.database.patience import patiently
    from metta.jobs.ledger import JobLedger
    from metta.jobs.local_workers import LocalWorkers
    from metta.jobs.worker_names import release_dead

    with JobLedger(settings.database) as ledger:
        ledger.require_usable()
        patiently(lambda: release_dead(ledger))
        with LocalWorkers(settings, count) as workers, contextlib.suppress(KeyboardInterrupt):
            say(f"{count} workers wait for jobs of {ledger.url}", flush=True)
            while workers.check(ledger):
                time.sleep(_LOOK_SECONDS)


def _report(job: "Job", outcome: str, seconds: float) -> None:
    say(printable(f"{job.kind} {job.key}: {outcome} ({seconds:.1f} s)"), flush=True)
