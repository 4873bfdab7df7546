"""Jobs of kind ``evaluate``: results equal local ones, and a job reaches nothing that it should not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import ConfigError, PolicyError, UnsafeFileError
from metta.jobs.evaluate import evaluate
from metta.jobs.failures import UnfitWorkerError
from metta.jobs.job import Job
from metta.jobs.worker_settings import WorkerSettings
from metta.rl.evaluate.described import asked_by, describe_evaluator, described_evaluation
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.process import EvaluationRequest
from metta.store.policies.file import read_policy_manifest, save_policy
from metta.store.policy_store import spaces_of
from metta.train.train_config import AgentConfig, EvaluationConfig, TrainingConfig

SETTINGS = WorkerSettings("jobs.db")
CONFIG = EvaluationConfig(eval_episodes=5, replay_max_steps=4)


class Watch:
    """Nobody asks for the job to be stopped."""

    def check(self) -> None:
        pass


@pytest.fixture
def policy() -> Policy:
    return make_policy(*spaces_of("CartPole-v1"), AgentConfig(hidden_size=8, core="gru"), seed=1)


@pytest.fixture
def file(tmp_path: Path, policy: Policy) -> Path:
    """A policy that waits for its score in a run."""
    run = tmp_path / "runs" / "first"
    TrainingConfig().to_yaml(run / "config.yaml")
    return save_policy(run / "checkpoints/owed/1234/epoch_000007.safetensors", policy)


def payload_of(file: Path, env: str = "CartPole-v1", **moment: Any) -> dict[str, Any]:
    played = describe_evaluator(PolicyEvaluator(env, CONFIG, seed=3), asked_by("queue"))
    request = EvaluationRequest(7, 70, **moment)
    digest = read_policy_manifest(file)["policy_hash"]
    described: dict[str, Any] = json.loads(
        json.dumps(described_evaluation(played, request, str(file), digest))
    )
    return described


def done(payload: dict[str, Any], settings: WorkerSettings = SETTINGS) -> dict[str, Any]:
    job = Job(1, "evaluate", "key", "group", payload, 1, "worker")
    found: dict[str, Any] = json.loads(json.dumps(evaluate(job, settings, Watch())))  # type: ignore[arg-type]  # all of it that is used
    return found


def test_results_and_replays_equal_those_of_a_local_evaluation(
    file: Path, policy: Policy, tmp_path: Path
) -> None:
    folder = file.parents[3] / "replays"
    found = done(payload_of(file, policy_uri="file:///x", replay_dir=str(folder)))
    local = PolicyEvaluator("CartPole-v1", CONFIG, seed=3)
    assert found["results"] == json.loads(json.dumps(local.play(policy).to_dict()))
    about = {"epoch": 7, "agent_step": 70, "policy_uri": "file:///x"}
    recorded = local.record(policy, tmp_path / "local", **about)
    ((name, path),) = found["replays"]["files"].items()
    assert Path(path).parent == folder
    assert Path(path).read_bytes() == Path(recorded.files[name]).read_bytes()


def test_as_many_threads_play_as_the_job_says(file: Path) -> None:
    before = torch.get_num_threads()
    try:
        done({**payload_of(file), "num_threads": 3})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "place",
    ["../../elsewhere", "/tmp", "..", "relative/replays", "link"],
)
def test_replays_are_written_into_the_run_of_the_policy_only(
    file: Path, tmp_path: Path, place: str
) -> None:
    run = file.parents[3]
    (run / "link").symlink_to(tmp_path)
    folder = place if place.startswith(("/", "relative")) else str(run / place)
    with pytest.raises(UnsafeFileError):
        done(payload_of(file, replay_dir=folder))
    lonely = save_policy(tmp_path / "alone.safetensors", make_policy(*spaces_of("CartPole-v1")))
    with pytest.raises(UnsafeFileError, match="its policy is in no run"):
        done(payload_of(lonely, replay_dir=str(tmp_path / "replays")))


def test_a_module_is_imported_only_if_the_worker_was_told_so(tmp_path: Path) -> None:
    env = "metta.envs.toy:CorridorEnv"
    file = save_policy(tmp_path / "p.safetensors", make_policy(*spaces_of(env)))
    payload = payload_of(file, env)
    with pytest.raises(UnfitWorkerError, match=r"a worker with --env metta\.envs\.toy:Corr"):
        done(payload)
    told = WorkerSettings("jobs.db", modules=("metta.envs.toy",))
    assert done(payload, told)["results"]["episodes"]
    for name in ("pettingzoo:antigravity", "antigravity:Env-v0"):
        with pytest.raises(UnfitWorkerError, match=name):
            done({**payload, "task": {**payload["task"], "env": name}}, told)


def test_a_policy_that_was_replaced_is_refused(file: Path) -> None:
    payload = payload_of(file)
    save_policy(file, make_policy(*spaces_of("CartPole-v1"), AgentConfig(hidden_size=8), seed=2))
    with pytest.raises(PolicyError, match="holds another policy than when the job was posted"):
        done(payload)


@pytest.mark.parametrize(
    "change",
    [{"policy": None}, {"num_threads": 10**9}, {"num_threads": True}, {"suite": 5}, {"task": {}}],
)
def test_a_payload_that_makes_no_sense_is_refused(file: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        done({**payload_of(file), **change})
