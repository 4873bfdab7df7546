"""`metta eval`: scores of saved policies, with confidence intervals."""

import argparse
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metta.cli.options import add_out, add_runs, written_file
from metta.cli.own_envs import importable_env
from metta.cli.policy_names import POLICY_HELP, say_choice, training_task
from metta.cli.tables import say, table
from metta.errors import ConfigError, PolicyError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.agent.policy import Policy
    from metta.agent.policy_record import PolicyRecord
    from metta.rl.evaluate.evaluator import PolicyEvaluator
    from metta.store.policies.rebuilding import HeldPolicy
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
        metavar="NAME|FILE",
        help="what is played, e.g. classic, or a YAML file (default: what the policy was trained on)",
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
    add_runs(parser, writes="file")


def run(options: argparse.Namespace) -> int:
    """Play, print and write."""
    if options.episodes is not None and options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}; give 1 or more")
    if options.suite is not None and options.env is not None:
        raise ConfigError("--suite and --env both choose what is played; give one of them")
    _sort_out(options)
    from metta.store.policy_store import PolicyStore  # torch loads here, not for --help

    store = PolicyStore(options.runs)
    rows: list[Row] = []
    details: list[dict[str, Any]] = []
    for number, uri in enumerate(options.policies, 1):
        evaluated = _evaluate(uri, number, options, store)
        rows += evaluated[0]
        details.append(evaluated[1])
    say(_table(rows))
    for one in details:
        for name, why in one["left_out"].items():
            say(printable(f"{one['policy']} does not play {name}: {why}"))
        for path in one["replays"].values():
            say(printable(f"replay of {one['policy']}: {path}"))
    _write(options, rows, details)
    return 0


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


def _evaluate(
    uri: str, number: int, options: argparse.Namespace, store: "PolicyStore"
) -> tuple[list[Row], dict[str, Any]]:
    import torch  # not for --help

    from metta.rl.learn.numerics import threads_for

    with store.hold(uri) as held:
        record = held.record
        say_choice(uri, record, store)
        evaluator = _evaluator(record, options, store)
        policy = _loaded(uri, held, evaluator)
    torch.set_num_threads(threads_for(policy))
    results = evaluator.play(policy)
    replays: dict[str, str] = {}
    if options.replays is not None:
        several = len(options.policies) > 1
        folder = Path(options.replays) / f"policy_{number}" if several else Path(options.replays)
        at = {"epoch": record.epoch, "agent_step": record.agent_step}
        recorded = evaluator.record(policy, folder, **at, policy_uri=record.uri)
        recorded.warn(record.epoch)
        replays = recorded.files
    estimates = evaluator.statistics()
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
    record: "PolicyRecord", options: argparse.Namespace, store: "PolicyStore"
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
    if options.suite is not None:
        suite = find_suite(options.suite)
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


def _loaded(uri: str, held: "HeldPolicy", evaluator: "PolicyEvaluator") -> "Policy":
    """The policy, built for the first simulation whose spaces are those in its file."""
    from metta.envs.factory import make_vec_env

    manifest = held.file.manifest
    own = manifest["observation_space"], manifest["action_space"]
    for task in evaluator.tasks.values():
        vec_env = make_vec_env(task)
        vec_env.close()
        described = json.loads(json.dumps(vec_env.obs_spec.describe()))
        if (described, str(vec_env.action_space)) == own:
            loaded = held.load(vec_env).policy
            assert loaded is not None, "load gives the policy"
            return loaded
    raise PolicyError(
        f"{uri!r} fits no simulation of the suite {evaluator.suite.name!r}: it observes {own[0]} and its "
        f"actions are {own[1]}"
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
