"""`metta eval`: scores of saved policies, with confidence intervals."""

import argparse
import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metta.cli.options import add_database, add_out, database_of, written_file
from metta.cli.own_envs import importable_env
from metta.cli.policy_names import POLICY_HELP, say_choice, training_task
from metta.cli.tables import say, table
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.agent.policy_record import PolicyRecord
    from metta.cli.evaluations import Elsewhere, Plan
    from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
    from metta.store.policy_store import PolicyStore

__all__ = ["Row", "configure", "run"]


class Row(NamedTuple):
    """One line of the table: a simulation, or a category as a whole."""

    policy: str
    name: str
    """``category/simulation``, or the category."""
    score: float
    low: float
    high: float
    """The 95 % interval of the score."""
    episodes: int
    missing: int
    """Episodes that a time limit cut off."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Plays fresh episodes with saved policies and prints their scores: the mean return per agent, with "
        "a 95 % bootstrap interval. The score of a category is the mean of its simulations."
    )
    parser.epilog = (
        "metta eval first:best second:best --suite classic --episodes 100 --csv scores.csv"
    )
    parser.add_argument(
        "policies",
        nargs="+",
        metavar="POLICY",
        help=POLICY_HELP,
    )
    parser.add_argument(
        "--suite",
        action="append",
        dest="suites",
        metavar="NAME|FILE",
        help="what is played, e.g. classic, or a YAML file (default: what the policy was trained on); may "
        "be given more than once",
    )
    parser.add_argument("--env", metavar="ID", help="play this one environment instead")
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes of each simulation")
    parser.add_argument(
        "--greedy", action="store_true", help="take the likeliest actions instead of samples"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the episodes")
    add_out(parser, "write FILE.csv, the table, or FILE.json, each episode too")
    parser.add_argument("--csv", metavar="FILE", help="write the table to a CSV file")
    parser.add_argument(
        "--json", metavar="FILE", help="write everything, each episode too, as JSON"
    )
    parser.add_argument(
        "--replays",
        metavar="DIR",
        help="record an episode of each simulation; `metta replay` plays it",
    )
    add_database(parser, writes="file")
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it is played")
    group.add_argument(
        "--on",
        choices=("here", "queue", "ray"),
        default="here",
        help="here: in this process; queue: by workers of --database (metta worker); ray: by workers on "
        "Ray (default: %(default)s). The numbers are the same",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="start N workers for it, on this machine or on Ray",
    )
    group.add_argument("--ray-address", metavar="HOST:PORT", help="Ray cluster to join")
    group.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="how long to wait for workers (default: no limit)",
    )


def run(options: argparse.Namespace) -> int:
    """Play, print and write."""
    if options.episodes is not None and options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}; give 1 or more")
    if options.suites and options.env is not None:
        raise ConfigError("--suite and --env both choose what is played; give one of them")
    _sort_out(options)
    place = _place(options)
    from metta.store.policy_store import PolicyStore  # torch loads here, not for --help

    plans = _plans(options, PolicyStore(options.runs))
    played = _played_here(plans) if place is None else _played_elsewhere(list(plans), place)
    rows: list[Row] = []
    details: list[dict[str, Any]] = []
    for plan, recorded in played:
        recorded.warn(plan.record.epoch)
        found = _told(plan, recorded.files)
        rows += found[0]
        details.append(found[1])
    say(_table(rows))
    for one in details:
        for name, why in one["left_out"].items():
            say(printable(f"{one['policy']} does not play {name}: {why}"))
        for path in one["replays"].values():
            say(printable(f"replay of {one['policy']}: {path}"))
    _write(options, rows, details)
    return 0


def _place(options: argparse.Namespace) -> "Elsewhere | None":
    """Where it is played; None: here. Options that would have no effect are refused."""
    if options.on == "here":
        for name in ("workers", "ray_address", "wait", "database"):
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"{option} has no effect with --on here; add --on queue or --on ray"
                )
        return None
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}; give 1 or more")
    if options.wait is not None and not options.wait >= 0:
        raise ConfigError(f"--wait {options.wait:g}; give a number of seconds, 0 or more")
    if options.ray_address is not None and options.on != "ray":
        raise ConfigError("--ray-address has no effect with --on queue; add --on ray")
    from metta.cli.evaluations import Elsewhere
    from metta.envs.env_ids import module_of

    module = None if options.env is None else module_of(importable_env(options.env))
    return Elsewhere(
        database_of(options),
        options.on,
        options.workers,
        options.ray_address,
        options.wait,
        modules=() if module is None else (module,),
    )


def _sort_out(options: argparse.Namespace) -> None:
    """The file of -o, as --csv or --json by its ending."""
    if options.out is None:
        return
    file = written_file(options.out)
    kind = file.suffix.lower().removeprefix(".")
    if kind not in ("csv", "json"):
        raise ConfigError(f"--output {str(file)!r} must end in .csv or .json; rename it")
    if getattr(options, kind) is not None:
        raise ConfigError(f"--output {str(file)!r} and --{kind} both name a file; give one of them")
    setattr(options, kind, str(file))


def _plans(options: argparse.Namespace, store: "PolicyStore") -> "Iterator[Plan]":
    """Every policy in every suite; a policy is loaded when it is its turn."""
    from metta.cli.evaluations import Plan
    from metta.rl.evaluate.described import policy_for

    suites = options.suites or [None]
    several = len(options.policies) * len(suites) > 1
    for number, (uri, suite) in enumerate(itertools.product(options.policies, suites), 1):
        with store.hold(uri) as held:
            record = held.record
            if suite is suites[0]:
                say_choice(uri, record, store)
            evaluator = _evaluator(record, suite, options, store)
            policy, digest = policy_for(uri, held, evaluator), held.file.manifest["policy_hash"]
        folder = None if options.replays is None else Path(options.replays)
        if folder is not None and several:
            folder = folder / f"policy_{number}"
        yield Plan(uri, record, policy, digest, evaluator, folder)


def _played_here(plans: "Iterator[Plan]") -> "Iterator[tuple[Plan, Recorded]]":
    from metta.cli.evaluations import play_here

    for plan in plans:
        yield plan, play_here(plan)


def _played_elsewhere(plans: "list[Plan]", place: "Elsewhere") -> "Iterable[tuple[Plan, Recorded]]":
    from metta.cli.evaluations import play_elsewhere

    return zip(plans, play_elsewhere(plans, place), strict=True)


def _told(plan: "Plan", replays: dict[str, str]) -> tuple[list[Row], dict[str, Any]]:
    """The lines of the table, and all that is known."""
    uri, record, evaluator = plan.uri, plan.record, plan.evaluator
    results, estimates = evaluator.results, evaluator.statistics()
    missing = {name: scores.num_missing for name, scores in results.episodes.items()}
    for name in results.summary.category_scores:
        missing[name] = sum(n for one, n in missing.items() if one.startswith(f"{name}/"))
    rows = [
        Row(uri, name, found.value, found.low, found.high, found.count, missing[name])
        for name, found in estimates.items()
    ]
    about = {"policy": uri, "uri": record.uri, "epoch": record.epoch}
    about |= {"agent_step": record.agent_step, "suite": evaluator.suite.to_dict()}
    scores = {name: found.to_dict() for name, found in estimates.items()}
    return rows, {**about, "scores": scores, "replays": replays, **results.to_dict()}


def _evaluator(
    record: "PolicyRecord",
    suite_name: str | None,
    options: argparse.Namespace,
    store: "PolicyStore",
) -> "PolicyEvaluator":
    import dataclasses

    from metta.curriculum import Task
    from metta.rl.evaluate.evaluator import PolicyEvaluator
    from metta.train.run_config import EvaluationConfig
    from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig, find_suite

    task = training_task(record)
    if options.env is not None:  # the policy was made for what its wrappers give
        wrappers = () if task is None else task.wrappers
        task = Task(importable_env(options.env), wrappers=wrappers)
    if suite_name is not None:
        suite = find_suite(suite_name)
    elif task is not None:
        category = "training" if options.env is None else "env"
        simulations = {f"{category}/{task.name}": SimulationConfig()}
        suite = SimulationSuiteConfig(name=category, simulations=simulations)
    else:
        raise ConfigError(
            f"{record.uri!r} does not name its training task: no run around it has a config.yaml with "
            "the id of an environment; give --env ID or --suite NAME|FILE"
        )
    given: dict[str, Any] = {} if options.episodes is None else {"num_episodes": options.episodes}
    given |= {"greedy": True} if options.greedy else {}
    simulations = {k: dataclasses.replace(one, **given) for k, one in suite.simulations.items()}
    return PolicyEvaluator(
        dataclasses.replace(suite, simulations=simulations),
        EvaluationConfig(),
        seed=options.seed,
        training_task=task,
        policy_store=store,
    )


def _table(rows: list[Row]) -> str:
    lines = [("policy", "simulation", "score", "95 % interval", "episodes", "")]
    lines += [
        (
            row.policy,
            row.name,
            shown_number(row.score),
            f"{shown_number(row.low)} .. {shown_number(row.high)}",
            str(row.episodes),
            f"{row.missing} missing" if row.missing else "",
        )
        for row in rows
    ]
    return table(lines)


def _write(options: argparse.Namespace, rows: list[Row], details: list[dict[str, Any]]) -> None:
    from metta.files import atomic_write_text
    from metta.loggers.events.plain_json import to_json

    if options.csv is not None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
        atomic_write_text(Path(options.csv), text.getvalue())
    if options.json is not None:
        atomic_write_text(Path(options.json), to_json({"policies": details}) + "\n")
