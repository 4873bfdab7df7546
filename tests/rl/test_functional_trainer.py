"""Training as a function, with a step, losses and a loop of one's own."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.rl.functional_trainer import (
    create_training_components,
    default_training_step,
    functional_training_loop,
    maybe_save_policy,
)
from metta.rl.training_components import make_experience
from metta.rl.training_state import PolicyTracker, TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.store.checkpoints.files import list_checkpoints
from metta.store.policy_store import PolicyStore
from metta.timing import Stopwatch
from metta.train.train_config import CheckpointConfig, PPOConfig, RolloutConfig, TrainerConfig

CONFIG = TrainerConfig(
    total_timesteps=64,
    rollout=RolloutConfig(num_envs=2, horizon=8),
    ppo=PPOConfig(update_epochs=1, num_minibatches=1),
    checkpoint=CheckpointConfig(checkpoint_interval=2, keep_last=9),
)
CURRICULUM = Curriculum(env=CorridorEnv)


def corridor_policy() -> Policy:
    env = CorridorEnv()
    return make_policy(env.observation_space, env.action_space)


def test_the_state_tells_how_far_it_came_when_the_loop_ends() -> None:
    state = functional_training_loop(CONFIG, None, corridor_policy(), CURRICULUM, None)
    assert (state.agent_steps, state.epoch, state.stop_reason) == (64, 4, None)


def test_the_ppo_config_counts_when_it_is_given() -> None:
    seen = []

    def step(state: Any, components: Any, config: Any, experience: Any) -> dict[str, float]:
        seen.append((config.ppo.update_epochs, components.ppo.config.update_epochs))
        return default_training_step(state, components, config, experience)

    ppo = dataclasses.replace(CONFIG.ppo, update_epochs=3)
    functional_training_loop(CONFIG, ppo, None, CURRICULUM, step_fn=step)
    assert set(seen) == {(3, 3)}


def test_losses_of_ones_own_are_learned_when_they_are_given() -> None:
    calls = []

    def loss(new_values: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return new_values.square().mean()

    with_loss, without = corridor_policy(), corridor_policy()
    functional_training_loop(CONFIG, None, with_loss, CURRICULUM, custom_losses=[loss])
    functional_training_loop(CONFIG, None, without, CURRICULUM)
    assert len(calls) == 4
    assert with_loss.parameter_hash() != without.parameter_hash()


def test_checkpoints_go_to_the_store_when_there_is_one(tmp_path: Path) -> None:
    functional_training_loop(CONFIG, None, None, CURRICULUM, PolicyStore(tmp_path))
    assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [2, 4]
    off = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(checkpoint_interval=0))
    functional_training_loop(off, None, None, CURRICULUM, PolicyStore(tmp_path / "off"))
    assert list_checkpoints(tmp_path / "off") == []


def test_environments_are_closed_when_a_step_fails() -> None:
    envs = []

    def step(state: Any, components: Any, config: Any, experience: Any) -> dict[str, float]:
        envs.append(components.vecenv)
        raise ValueError("boom")

    workers = dataclasses.replace(CONFIG, rollout=RolloutConfig(num_envs=2, num_workers=2))
    with pytest.raises(ValueError, match="boom"):
        functional_training_loop(workers, curriculum=CURRICULUM, step_fn=step)
    assert envs  # that no worker is left is a rule of this suite


def test_the_given_buffer_is_filled_when_a_loop_of_ones_own_steps() -> None:
    env = make_vec_env(CorridorEnv, num_envs=2)
    parts = create_training_components(CONFIG, None, None, env)
    other = make_experience(parts.policy, env, CONFIG)
    assert parts.experience is not other
    state = TrainerState()
    default_training_step(state, parts, CONFIG, other)
    assert parts.collector.experience is other
    assert bool(other.valid.any())
    env.close()


def test_policies_are_saved_at_intervals_when_a_loop_of_ones_own_asks(tmp_path: Path) -> None:
    store, tracker, timer = PolicyStore(tmp_path), PolicyTracker(), Stopwatch()
    policy, scores = corridor_policy(), EvalRewardSummary({"training/x": 2.5})
    records = [
        maybe_save_policy(policy, store, tracker, 8 * epoch, epoch, scores, timer, interval=2)
        for epoch in range(1, 6)
    ]
    assert [record and record.epoch for record in records] == [None, 2, None, 4, None]
    assert tracker.latest_saved_policy_record is records[3]
    assert [record.metadata["score"] for record in store.list()] == [2.5, 2.5]
    assert timer.elapsed("save_policy") > 0
    unscored = EvalRewardSummary()
    record = maybe_save_policy(policy, store, tracker, 48, 6, unscored, timer)
    assert record is not None
    assert "score" not in record.metadata
