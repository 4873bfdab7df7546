"""Jobs of kind ``evaluate``: a saved policy plays a suite, and is recorded where that is wanted."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from metta.agent.policy import Policy
from metta.errors import ConfigError, PolicyError, UnsafeFileError
from metta.jobs.job import Job
from metta.jobs.watch import JobWatch
from metta.jobs.worker_settings import WorkerSettings
from metta.rl.evaluate.described import evaluator_of, policy_for
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.store.run_directory import run_around
from metta.untrusted.paths import path_of, safe_join

__all__ = ["evaluate"]

_MAX_THREADS = 1024
_ABOUT = ("epoch", "agent_step", "policy_uri")
"""What a replay records about its policy."""


def evaluate(job: Job, settings: WorkerSettings, watch: JobWatch) -> dict[str, Any]:
    """Play what `metta.rl.evaluate.described` described; returns results and replays as plain data.

    They equal those of an evaluation in the trainer to the bit: same episodes, same number of threads. A
    policy file that holds other weights than the one that was described is refused.
    """
    payload = job.payload
    evaluator = evaluator_of(payload)
    for task in evaluator.tasks.values():
        settings.require_env(task.env)
    folder = _replay_folder(payload)
    policy = _policy(payload, evaluator)
    torch.set_num_threads(_num_threads(payload))
    results = evaluator.play(policy).to_dict() if payload.get("is_scored", True) else None
    watch.check()
    replays = None
    if folder is not None:
        about: dict[str, Any] = {name: payload[name] for name in _ABOUT}
        replays = dataclasses.asdict(evaluator.record(policy, folder, **about))
    return {"results": results, "replays": replays}


def _policy(payload: Mapping[str, Any], evaluator: PolicyEvaluator) -> Policy:
    uri = payload.get("policy")
    if not isinstance(uri, str):
        raise ConfigError(f"the job names no policy, but {uri!r}")
    with evaluator.policy_store.hold(uri) as held:
        if held.file.manifest["policy_hash"] != payload.get("policy_hash"):
            raise PolicyError(f"{uri!r} holds another policy than when the job was posted")
        return policy_for(uri, held, evaluator)


def _num_threads(payload: Mapping[str, Any]) -> int:
    found = payload.get("num_threads")
    if type(found) is not int or not 1 <= found <= _MAX_THREADS:
        raise ConfigError(f"the job asks for num_threads={found!r}; give 1 to {_MAX_THREADS}")
    return found


def _replay_folder(payload: Mapping[str, Any]) -> str | None:
    """Where replays go: inside of the run that holds the policy, whatever the job says."""
    named = payload.get("replay_dir")
    if named is None:
        return None
    run = run_around(path_of(str(payload.get("policy"))))
    if run is None or not Path(str(named)).is_absolute():
        raise UnsafeFileError(
            f"the job wants replays in {str(named)[:400]!r}, but its policy is in no run; workers write "
            "replays into runs only"
        )
    return str(safe_join(run, os.path.relpath(str(named), run)))
