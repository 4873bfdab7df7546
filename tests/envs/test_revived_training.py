"""Whole trainings whose workers die: they learn the same, to the bit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metta.envs.toy import MemoryEnv
from metta.rl.ppo_trainer import PPOTrainer
from metta.stateful import digest_of
from metta.testing.fault_env import FaultEnv

SIZES = {"num_envs": 4, "num_groups": 2, "horizon": 16, "hidden_size": 8, "core": "lstm"}


def learned(factory: Any, **options: Any) -> str:
    with PPOTrainer(None, factory, verbose=False, seed=3, **SIZES, **options) as trainer:
        trainer.train(total_timesteps=4 * 16 * 4)
        if "num_workers" in options:
            outcomes = [restart.outcome for restart in trainer.collector.vec_env.restarts]
            assert outcomes == ["exact"]
        return digest_of(trainer.policy.state_dict())


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return learned(MemoryEnv)


@pytest.mark.parametrize("at_step", [1, 33])
def test_training_ends_with_the_same_weights_when_a_worker_dies(
    undisturbed: str, at_step: int, tmp_path: Path
) -> None:
    faulty = partial(FaultEnv, MemoryEnv, "kill", at_step=at_step, once_file=tmp_path / "once")
    assert learned(faulty, num_workers=2) == undisturbed
