from pathlib import Path

import pytest
from torch import Tensor

from metta.agent.factory import make_policy
from metta.cli.main import main
from metta.envs.factory import make_vec_env
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.buffer_size import buffer_bytes
from metta.train.layers import resolve


def test_the_arithmetic_is_the_known_one_when_nothing_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "cartpole", "--dry-run", "--output", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "batch:        num_envs 8 x horizon 128 = 1,024 steps",
        "minibatches:  4 x 256 steps",
        "update:       8 passes x 4 minibatches = 32 optimizer steps",
        # 98 x 1,024 is the first multiple above 100,000
        "run:          98 epochs of 1,024 steps = 100,352 steps, 3,136 optimizer steps",
    ]
    # 4 bytes for each of 9,155 parameters, and two moments of Adam
    assert "policy:       9,155 parameters, 36.6 kB, and as much for gradients" in lines
    assert "optimizer:    adam, 73.2 kB" in lines
    # the rollout, the weights, their gradients and the moments
    assert "rollout:      45.2 kB" in lines
    assert any(line.startswith("memory:       191.7 kB") for line in lines)
    assert not (tmp_path / "runs").exists()


def test_segments_are_shown_when_the_agent_is_recurrent(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["core=lstm", "batch_size=32", "--trainer.optimizer.name", "sgd"]
    assert main(["train", "cartpole", *words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "segments:     64 of 16 steps" in shown
    assert "minibatches:  32 x 32 steps" in shown
    assert "optimizer:    sgd, 0 B" in shown


def test_unequal_minibatches_are_shown_when_they_do_not_divide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "cartpole", "num_envs=5", "horizon=10", "--dry-run"]) == 0
    assert "minibatches:  4 x 12 or 13 steps" in capsys.readouterr().out


def test_the_choice_is_explained_when_sizes_are_automatic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "cartpole", "auto_batch=on", "num_envs=8", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "auto_batch:   num_envs as set -> 8 envs" in shown
    assert "num_envs 8 x horizon" in shown


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_bytes_are_those_of_the_real_buffer_when_they_are_reckoned(env: str, core: str) -> None:
    config = resolve(None, [], [f"core={core}", "num_envs=3", "horizon=64", f"env={env}"]).config
    vec_env = make_vec_env(env, num_envs=3)
    probe = make_vec_env(env)
    policy = make_policy(probe.observation_space, probe.action_space, config.agent)
    buffer = RolloutBuffer.for_env(policy, vec_env, 64, bptt_horizon=16)
    parts = list(vars(buffer).values())
    tensors = [part for part in parts if isinstance(part, Tensor)]
    tensors += [*buffer.obs.values(), *buffer.states.values()]
    assert buffer_bytes(config, probe, policy) == sum(tensor.nbytes for tensor in tensors)
    vec_env.close()
    probe.close()


def test_only_learners_are_counted_when_others_are_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "grid", "learner_share=0.5", "--dry-run"]) == 0
    assert "num_envs 32 x 2 agents x horizon 64 = 4,096 steps" in capsys.readouterr().out
