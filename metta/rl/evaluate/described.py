"""Evaluations as plain data, for workers that share files with the trainer, and nothing else."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.policy import Policy
from metta.curriculum import Task
from metta.envs.env_ids import module_of
from metta.envs.factory import make_vec_env
from metta.errors import ConfigError, PolicyError
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.process import EvaluationRequest
from metta.store.policy_store import PolicyStore
from metta.train.parsing.values import plain_data
from metta.train.run_config import EvaluationConfig
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig

if TYPE_CHECKING:
    from metta.store.policies.rebuilding import HeldPolicy

__all__ = [
    "Asked",
    "asked_by",
    "describe_evaluator",
    "envs_of_workers",
    "described_evaluation",
    "evaluator_of",
    "key_of",
    "modules_of",
    "policy_for",
    "require_built_in",
]

_COUNTS = ("eval_episodes", "eval_envs", "replay_max_steps")
_DOWNLOADED = "wandb://"


class Asked(NamedTuple):
    """How somebody asked for evaluations elsewhere, for messages."""

    setting: str
    instead: str
    """What plays on this machine."""


def asked_by(where: str) -> Asked:
    """The setting of a run."""
    return Asked(f"evaluation.where={where}", "evaluation.where=process plays it on this machine")


def require_built_in(policy: Policy, asked: Asked) -> None:
    """Refuse a network that only the user's program can build."""
    kind = type(policy.module)
    if kind not in (ActorCritic, RecurrentActorCritic):
        raise ConfigError(
            f"{asked.setting} sends policies to other programs, which build metta's own networks only, not "
            f"{kind.__name__}; {asked.instead}"
        )


def describe_evaluator(evaluator: Any, asked: Asked) -> dict[str, Any]:
    """What is played, as plain data; `ConfigError` if other programs could not play it.

    Policies of other agents are found now, and named by their files.
    """
    if type(evaluator) is not PolicyEvaluator:
        raise ConfigError(
            f"{asked.setting} cannot use an evaluator of your own, a {type(evaluator).__name__}; "
            "evaluation.where=here can"
        )
    task, store = evaluator.task, evaluator.policy_store
    if task is not None and not isinstance(task.env, str):
        raise ConfigError(
            f"{asked.setting} needs environments that are named by an id, and {task.name} is a "
            f"{type(task.env).__name__}; name it as module:Class, or {asked.instead}"
        )
    try:
        described = None if task is None else plain_data(task)
        suite = evaluator.suite.to_dict()
    except ConfigError as error:
        raise ConfigError(
            f"{asked.setting} cannot describe what is played: {error}; {asked.instead}"
        ) from error
    for simulation in suite["simulations"].values():
        uri = simulation["npc_policy_uri"]
        if uri is not None and not uri.startswith(_DOWNLOADED):
            simulation["npc_policy_uri"] = store.find(uri).uri
    return {
        "suite": suite,
        "task": described,
        "evaluation": {name: getattr(evaluator.config, name) for name in _COUNTS},
        "seed": evaluator.seed,
        "policies": str(store.root.absolute()),
    }


def described_evaluation(
    evaluator: Mapping[str, Any],
    moment: EvaluationRequest,
    policy: str,
    policy_hash: str,
) -> dict[str, Any]:
    """What a job of the kind ``evaluate`` asks for: what `evaluator` describes, played by a saved policy.

    As many threads play as this process uses now.
    """
    if moment.replay_dir is None:  # the same scores, wherever the policy is saved meanwhile
        moment = dataclasses.replace(moment, policy_uri=None)
    return {
        **evaluator,
        **dataclasses.asdict(moment),
        "policy": policy,
        "policy_hash": policy_hash,
        "num_threads": torch.get_num_threads(),
    }


def envs_of_workers(evaluators: Iterable[Any]) -> str:
    """Options of `metta worker` that let it play environments of modules: `` --env mine:Maze``."""
    known = [one for one in evaluators if isinstance(one, PolicyEvaluator)]
    envs = {task.env for one in known for task in one.tasks.values() if isinstance(task.env, str)}
    return "".join(f" --env {shlex.quote(env)}" for env in sorted(envs) if module_of(env))


def modules_of(evaluator: Mapping[str, Any]) -> list[str]:
    """Modules that making the environments imports."""
    envs = [one["env"] for one in evaluator["suite"]["simulations"].values()]
    envs.append(None if evaluator["task"] is None else evaluator["task"]["env"])
    return sorted({module for env in envs if env and (module := module_of(env)) is not None})


def key_of(payload: Mapping[str, Any], owner: str) -> str:
    """The key of such a job: the same policy, played in the same way for the same run, has the same."""
    content = json.dumps(payload, sort_keys=True).encode()
    return f"evaluate/{owner}/{payload['epoch']}/{hashlib.sha256(content).hexdigest()[:40]}"


def evaluator_of(payload: Mapping[str, Any]) -> PolicyEvaluator:
    """The evaluator that `describe_evaluator` described; `ConfigError` for anything else."""
    try:
        about, task = dict(payload["suite"]), payload["task"]
        simulations = {k: SimulationConfig(**one) for k, one in about.pop("simulations").items()}
        if task is not None:
            task = Task(**{**task, "wrappers": tuple(task["wrappers"])})
        evaluator = PolicyEvaluator(
            SimulationSuiteConfig(**about, simulations=simulations),
            EvaluationConfig(**payload["evaluation"]),
            training_task=task,
            policy_store=PolicyStore(payload["policies"]),
        )
        evaluator.seed = int(payload["seed"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"it does not describe an evaluation: {type(error).__name__}: {error}"
        ) from error
    return evaluator


def policy_for(uri: str, held: "HeldPolicy", evaluator: PolicyEvaluator) -> Policy:
    """The policy, built for the first simulation whose spaces are those in its file."""
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
