"""The process that evaluates: what it is given, what it answers, and how it ends."""

from pathlib import Path

import gymnasium
import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import CorridorEnv
from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.worker_process import worker_context
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.process import EvaluationProcess, described_job, write_weights
from metta.store.policies.file import freeze_policy
from metta.train.train_config import AgentConfig, EvaluationConfig


def policy_for(env: gymnasium.Env, **config: int) -> Policy:
    return make_policy(env.observation_space, env.action_space, AgentConfig(**config), seed=1)


def evaluator_of() -> PolicyEvaluator:
    return PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=2))


def test_no_weights_travel_with_the_job_when_a_policy_is_large() -> None:
    policy = policy_for(CorridorEnv(), hidden_size=1024)
    before = policy.parameter_hash()
    weights = sum(parameter.numel() * 4 for parameter in policy.parameters())
    assert len(described_job(evaluator_of(), policy)) < weights / 100
    assert policy.parameter_hash() == before


def test_jobs_are_answered_in_turn_when_one_of_them_fails(tmp_path: Path) -> None:
    policy = policy_for(CorridorEnv(), hidden_size=8)
    job, weights = described_job(evaluator_of(), policy), freeze_policy(policy)
    folders = [tmp_path / name for name in ("first", "broken", "third")]
    for folder in folders:
        folder.mkdir()
        write_weights(folder, weights)
    (folders[1] / "policy.safetensors").write_bytes(b"nothing")
    process = EvaluationProcess(worker_context())
    try:
        for folder in folders:
            process.give(folder / "policy.safetensors", job)
        answers = [process.answer(100.0) for _ in folders]
        assert process.answer(0.0) is None
        assert not process.has_ended
    finally:
        process.end()
    first, broken, third = (answer or {} for answer in answers)
    assert first["results"] == third["results"]
    assert list(first["results"]["episodes"]) == ["training/CorridorEnv"]
    assert broken["error"].startswith("PolicyError")


def test_nobody_waits_when_two_answers_came_together() -> None:
    process = EvaluationProcess(worker_context())
    try:
        process._received = bytearray(b'{"results": 1}\n{"recorded": 2}\n')
        for expected in ({"results": 1}, {"recorded": 2}):
            assert process.answer(100_000.0) == expected
    finally:
        process.end()


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_process_is_gone_when_it_is_ended(tmp_path: Path, is_busy: bool) -> None:
    process = EvaluationProcess(worker_context())
    if is_busy:
        process.give(tmp_path / "nothing", b"nothing")
    end = ProcessEnd(process.pid)
    code = process.end()
    assert end.within(10)
    assert code is not None
