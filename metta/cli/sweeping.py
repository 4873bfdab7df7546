"""Beginning and carrying on a sweep, for `metta sweep` and `metta seeds`."""

import argparse
import contextlib
import itertools
import math
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.cli.arguments import resolve_arguments, sort_arguments
from metta.cli.commands.train import checked_options
from metta.cli.options import add_database, database_of
from metta.cli.own_envs import recall_env, remember_env
from metta.cli.tables import say
from metta.errors import ConfigError, SweepError
from metta.untrusted.paths import check_name

if TYPE_CHECKING:
    from metta.jobs.local_workers import LocalWorkers
    from metta.jobs.ray_workers import RayWorkers
    from metta.sweeps.definition import SweepDefinition
    from metta.sweeps.ledger import SweepLedger
    from metta.sweeps.ranges import Range
    from metta.train.layers import Resolved

__all__ = [
    "PLACES",
    "add_sweep_options",
    "begun",
    "check_runs",
    "defined",
    "driven",
    "more_trials",
    "opened",
    "resume_command",
]

PLACES = ("local", "queue", "ray")
_TRIES = 32
"""Combinations among which one that can be trained is looked for."""
_PAUSE_SECONDS = 0.2
_IGNORED_SECONDS = 5.0
"""After which jobs that no worker takes are worth a line."""
_LEASE_SECONDS = 12.0
"""A run that was pruned notices within a third of it."""
_QUEUED = 8
"""Jobs that are kept in the queue where other machines do them, if --workers does not say it."""


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that has trials run."""
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs that are trained at the same time (default: one for each core)",
    )
    parser.add_argument(
        "--on",
        choices=PLACES,
        default="local",
        help="who trains: processes on this machine, `metta worker` elsewhere, or a Ray cluster "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the Ray cluster of --on ray (default: a new one, on this machine alone)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of the sweep and of its folder (default: by its time)"
    )
    add_database(parser, writes="file")


def opened(options: argparse.Namespace, *, must_exist: bool = False) -> "SweepLedger":
    """The database with its tables; a wrong address is refused here, before any work."""
    from metta.sweeps.ledger import SweepLedger

    ledger = SweepLedger(database_of(options))
    try:
        if must_exist:
            ledger.check()
        ledger.names()
    except BaseException:
        ledger.close()
        raise
    return ledger


def defined(
    words: Sequence[str], options: argparse.Namespace, kind: str, **choices: Any
) -> "SweepDefinition":
    """The sweep that words and options describe; refuses what is wrong before any work."""
    from metta.sweeps.definition import SweepDefinition, check_choices
    from metta.sweeps.ranges import is_range
    from metta.sweeps.space import check_combinations, read_ranges
    from metta.train.parsing.values import plain_data
    from metta.train.settings import given_paths, setting_values

    if options.name is not None:
        check_name(options.name, "--name")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: give 1 or more")
    if options.address is not None and options.on != "ray":
        raise ConfigError(f"--address {options.address!r} is that of a Ray cluster; add --on ray")
    settings = set(sort_arguments(words).settings)
    ranged = [word for word in words if word in settings and is_range(word)]
    fixed = [word for word in words if word not in ranged]
    ranges = read_ranges(ranged, _paths_of(fixed))
    resolved, output = _resolved(fixed, ranges, options)
    config = resolved.config
    check_combinations(config, ranges)
    _check_evaluation(config.trainer.evaluation, choices.get("objective", "score"))
    values = setting_values(config)
    varied = {one.path for one in ranges}
    given = sorted(given_paths(config) - varied)
    return check_choices(
        SweepDefinition(
            name=_name(options.name, kind, resolved),
            words=tuple(fixed),
            settings={path: plain_data(values[path], path) for path in given},
            provenance=resolved.provenance(),
            ranges=ranges,
            runs=str(output.absolute()),
            total_timesteps=config.trainer.total_timesteps,
            first_seed=config.trainer.seed,
            **choices,
        )
    )


def begun(ledger: "SweepLedger", definition: "SweepDefinition") -> Path:
    """Enter a new sweep and make its folder; returns the folder."""
    folder = Path(definition.runs) / definition.name
    _check_new(ledger, definition.name)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"the folder {str(folder)!r} has something in it already, and {ledger.url} has no sweep of "
            "this name; choose another --name, or give the --database in which it is"
        )
    remember_env(folder, _env_of(definition))
    ledger.begin(definition)
    return folder


def _check_new(ledger: "SweepLedger", name: str) -> None:
    """Refuse the name of a sweep that the database has, and say how that one goes on."""
    if name not in ledger.names():
        return
    from metta.sweeps.trials import Trials

    stored, trials = ledger.definition(name), Trials(ledger.events(name))
    num_ended = len(trials) - len(trials.in_state("running"))
    command = "sweep" if stored.ranges else "seeds"
    more = ", and tries more with --trials N" if stored.ranges else ""
    raise ConfigError(
        f"{command} {name!r} exists ({num_ended} of {stored.trials} trials ended): metta {command} resume "
        f"{name} continues it{more}; choose another --name for a new one"
    )


def driven(
    ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace
) -> None:
    """Carry a sweep on to its end, or until Ctrl-C; one process at a time."""
    from metta.jobs.worker_names import release_dead
    from metta.sweeps.driver import SweepDriver
    from metta.sweeps.lock import hold_sweep

    folder, env = Path(definition.runs) / definition.name, _env_of(definition)
    folder.mkdir(parents=True, exist_ok=True)
    recall_env(folder, env)
    remember_env(folder, env)
    with hold_sweep(definition):
        count = _num_workers(options, definition)
        release_dead(ledger)
        driver = SweepDriver(
            ledger,
            definition,
            workers=count,
            say=lambda line: say(line, flush=True),
            prepare=lambda run: remember_env(run, env),
        )
        if driver.is_done:
            return
        say(_first_line(ledger, definition, options.on, count, len(driver.trials)), flush=True)
        again = resume_command(definition, options)
        try:
            with _workers(options, definition, count) as workers:
                hint_at = time.monotonic() + _IGNORED_SECONDS if options.on == "queue" else math.inf
                while not driver.step():
                    if workers is not None:
                        workers.check(ledger)
                    if time.monotonic() > hint_at:
                        hint_at = math.inf
                        _hint_at_workers(ledger, definition, options)
                    time.sleep(_PAUSE_SECONDS)
        except KeyboardInterrupt:
            say(f"interrupted, and what runs is saved; continue with: {again}", flush=True)
            raise
        except SweepError as error:
            after = f"if that is mended, continue with: {again}"
            if driver.has_only_failed:
                after = more_trials(definition, options, len(driver.trials))
            raise SweepError(f"{error}\n{after}") from error


def _hint_at_workers(
    ledger: "SweepLedger", definition: "SweepDefinition", options: argparse.Namespace
) -> None:
    """Say how to start a worker, if none has taken a job of this sweep yet."""
    from metta.envs.env_ids import module_of

    taken = ("held", "done", "failed", "cancelled")
    if ledger.records(group=definition.group, states=taken):
        return
    words = ["metta", "worker", "--runs", options.runs]
    words += ["--database", options.database] if options.database is not None else []
    env = _env_of(definition)
    words += ["--env", env] if module_of(env) is not None else []
    say(f"no worker has taken a job yet; start one with: {shlex.join(words)}", flush=True)


def resume_command(definition: "SweepDefinition", options: argparse.Namespace) -> str:
    """The command that carries a sweep on, with the folder and database of this one."""
    words = ["metta", "sweep" if definition.ranges else "seeds", "resume", definition.name]
    if options.runs != "runs":
        words += ["--runs", options.runs]
    if options.database is not None:
        words += ["--database", options.database]
    if options.on != "local":
        words += ["--on", options.on]
    if options.address is not None:
        words += ["--address", options.address]
    return shlex.join(words)


def more_trials(definition: "SweepDefinition", options: argparse.Namespace, num_begun: int) -> str:
    """What to do after trials that failed: they are not tried again, others are."""
    new = "begin a new sweep with another --name"
    largest = num_begun
    if definition.ranges:
        from metta.sweeps.suggestions import largest_number

        wanted = definition.trials if definition.trials > num_begun else 2 * num_begun
        largest = min(wanted, largest_number(definition))
    if largest <= num_begun:
        return f"trials that failed are not tried again; if that is mended, {new}"
    return (
        "trials that failed are not tried again; if that is mended, try others with: "
        f"{resume_command(definition, options)} --trials {largest}\nor {new}"
    )


def check_runs(definition: "SweepDefinition", options: argparse.Namespace) -> None:
    """Refuse to carry on a sweep with another folder of runs than it began with."""
    if Path(options.runs).resolve() != Path(definition.runs).resolve():
        raise ConfigError(
            f"the runs of {definition.name!r} are in {definition.runs!r}; add --runs "
            f"{shlex.quote(definition.runs)}"
        )


def _paths_of(words: Sequence[str]) -> dict[str, str]:
    """Paths that words of the command line set, with the words."""
    from metta.train.settings import setting_paths

    names = setting_paths()
    named = {word: word.partition("=")[0].replace("-", "_") for word in words if "=" in word}
    return {names[name]: word for word, name in named.items() if name in names}


def _resolved(
    fixed: Sequence[str], ranges: Sequence["Range"], options: argparse.Namespace
) -> tuple["Resolved", Path]:
    """Settings with one value for each range, and the folder of runs; all of them are checked."""
    from metta.sweeps.space import combinations, words_of

    words = [words_of(ranges, values) for values in itertools.islice(combinations(ranges), _TRIES)]
    about = {"eval_episodes": None, "runs": options.runs, "run": options.name}
    return checked_options(argparse.Namespace(words=[*fixed, *_first_valid(fixed, words)], **about))


def _first_valid(fixed: Sequence[str], words: Sequence[list[str]]) -> list[str]:
    """The first combination that can be trained, so that those that cannot are told beside it."""
    for combination in words[1:] and words:
        with contextlib.suppress(ConfigError):
            resolve_arguments([*fixed, *combination])
            return combination
    return words[0]


def _check_evaluation(evaluation: Any, objective: str) -> None:
    if objective == "score" and evaluation.eval_episodes == 0:
        raise ConfigError(
            "eval_episodes=0: trials are compared by the score of their last evaluation; give "
            "eval_episodes=20, or --objective reward"
        )
    where = getattr(evaluation, "where", "here")
    if where in ("queue", "ray"):
        raise ConfigError(
            f"evaluation.where={where}: a run of a sweep is a job itself, and evaluates in its own "
            "process; leave evaluation.where out"
        )


def _name(name: str | None, kind: str, resolved: "Resolved") -> str:
    if name is not None:
        return name
    env = resolved.config.env.rpartition(":")[2].lower()
    stem = "".join(sign if sign.isalnum() else "_" for sign in env).strip("_")[:60]
    return f"{kind}-{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _env_of(definition: "SweepDefinition") -> str:
    from metta.train.train_config import TrainingConfig

    return TrainingConfig.from_dict(definition.settings).env


def _num_workers(options: argparse.Namespace, definition: "SweepDefinition") -> int:
    if options.workers is not None:
        return int(options.workers)
    if options.on != "local":
        return _QUEUED
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, definition.trials * definition.seeds))


@contextlib.contextmanager
def _workers(
    options: argparse.Namespace, definition: "SweepDefinition", count: int
) -> Iterator["LocalWorkers | RayWorkers | None"]:
    """The processes that train; None where they are started elsewhere."""
    if options.on == "queue":
        yield None
        return
    from metta.envs.env_ids import module_of
    from metta.jobs.train import envs_of
    from metta.jobs.worker_settings import WorkerSettings
    from metta.train.train_config import TrainingConfig

    envs = envs_of(TrainingConfig.from_dict(definition.settings))
    settings = WorkerSettings(
        database_of(options),
        runs=definition.runs,
        kinds=("train",),
        groups=(definition.group,),
        modules=tuple(filter(None, map(module_of, envs))),
        lease_seconds=_LEASE_SECONDS,
    )
    if options.on == "ray":
        from metta.jobs.ray_workers import RayWorkers

        address = options.address
        with RayWorkers(settings, count, address=address, setting="--address") as on_ray:
            yield on_ray
        return
    from metta.jobs.local_workers import LocalWorkers

    with LocalWorkers(settings, count) as workers:
        yield workers


def _first_line(
    ledger: "SweepLedger", definition: "SweepDefinition", on: str, count: int, done: int
) -> str:
    runs = f" of {definition.seeds} runs" if definition.seeds > 1 else ""
    workers = {
        "local": f"{count} worker{'s' * (count > 1)}",
        "queue": f"up to {count} jobs for `metta worker`",
        "ray": f"{count} workers on Ray",
    }[on]
    how = f", {definition.sampler}" if definition.ranges else ""
    cost = "" if definition.cost == "none" else f" at a low cost ({definition.cost})"
    goes_on = f" from trial {done}" if done else ""
    return (
        f"sweep {definition.name}{goes_on}: {definition.trials} trial{'s' * (definition.trials > 1)}{runs}"
        f"{how}, for a high {definition.objective}{cost}; {workers}; database {ledger.url}"
    )
