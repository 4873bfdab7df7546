"""Equal seeds give equal bits: across runs, backends, groups, processes, and whatever users do between."""

import copy
import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metta import PPOTrainer
from metta.envs.factory import make_vec_env
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv, MaskedCorridorEnv, MemoryEnv, NestedEnv
from metta.sim.simulation import run_episodes

SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 8, "n_epochs": 2, "hidden_size": 8}
NUM_EPOCHS = 3
NUM_STEPS = NUM_EPOCHS * 32

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (CorridorEnv, {}),
    "lstm": (MemoryEnv, {"core": "lstm", "bptt_horizon": 4}),
    "masked": (MaskedCorridorEnv, {}),
    "normalised": (ContinuousTargetEnv, {"normalize_obs": True, "normalize_returns": True}),
}


def make(kind: str, **options: Any) -> PPOTrainer:
    env, settings = KINDS[kind]
    return PPOTrainer(None, env, **SMALL | settings | options)


def trained(kind: str, **options: Any) -> str:
    with make(kind, **options) as trainer:
        trainer.train(NUM_STEPS)
        return trainer.digest()


@functools.cache
def reference(kind: str, num_groups: int = 1) -> str:
    """The digest that every other way to the same numbers is held to."""
    return trained(kind, num_groups=num_groups)


@pytest.mark.parametrize("kind", KINDS)
def test_digests_are_equal_when_seeds_are(kind: str) -> None:
    assert trained(kind) == reference(kind)
    assert trained(kind, seed=4) != reference(kind)


def test_digests_are_equal_when_observations_are_nested() -> None:
    digests = set()
    for _ in range(2):
        with PPOTrainer(None, NestedEnv, **SMALL) as trainer:
            trainer.train(64)
            digests.add(trainer.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_groups", [1, 2])
def test_digests_are_equal_when_workers_step_the_environments(kind: str, num_groups: int) -> None:
    found = trained(kind, num_groups=num_groups, num_workers=2)
    assert found == reference(kind, num_groups)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_see_the_same_worlds_when_there_are_two_of_them(kind: str) -> None:
    """Groups act in smaller batches, which may move last bits, but no decision."""
    with make(kind) as one, make(kind, num_groups=2) as two:
        first, second = one.collect_rollouts(), two.collect_rollouts()
    for name in ("rewards", "terminated", "truncated", "episode_starts"):
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5)


def evaluate(trainer: PPOTrainer) -> None:
    envs = make_vec_env(MaskedCorridorEnv, num_envs=2)
    run_episodes(trainer.policy, envs, 3, seed=99)
    envs.close()


def draw(_: PPOTrainer) -> None:
    torch.rand(7)
    torch.manual_seed(random.randrange(1000))
    np.random.seed(1)  # noqa: NPY002 (users' code does it)
    np.random.rand(5)  # noqa: NPY002 (as above)
    random.seed(5)


def look(trainer: PPOTrainer) -> None:
    trainer.digest()
    trainer.manifest()
    copy.deepcopy(trainer.registry.snapshot())


@pytest.mark.parametrize("between", [evaluate, draw, look])
def test_the_digest_is_unmoved_when_users_do_other_things_between_epochs(
    between: Callable[[PPOTrainer], None],
) -> None:
    with make("masked") as trainer:
        trainer.train(NUM_STEPS, on_epoch_end=lambda *_: between(trainer))
        assert trainer.digest() == reference("masked")


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_digest_is_unmoved_when_the_agent_acts_in_other_environments(core: str) -> None:
    settings = {"core": core, "bptt_horizon": 4}
    with make("mlp", **settings) as quiet, make("mlp", **settings) as busy:
        quiet.train(NUM_STEPS)
        for _ in range(NUM_EPOCHS):
            busy.train(32)
            envs = make_vec_env(CorridorEnv, num_envs=3)
            run_episodes(busy.policy, envs, 2, seed=1)
            envs.close()
        assert quiet.policy.parameter_hash() == busy.policy.parameter_hash()


def test_the_digest_moves_when_a_rollout_is_thrown_away() -> None:
    """As `collect_rollouts` says: episodes run on, so the run has moved on."""
    with make("mlp") as trainer:
        trainer.train(32)
        trainer.collect_rollouts()
        trainer.train(64)
        assert trainer.digest() != reference("mlp")


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_returns_when_a_snapshot_is_restored(kind: str) -> None:
    with make(kind) as trainer:
        trainer.train(32)
        before, snapshot = trainer.digest(), copy.deepcopy(trainer.registry.snapshot())
        trainer.train(64)
        assert trainer.digest() != before
        trainer.registry.restore(snapshot)
        assert trainer.digest() == before


@pytest.mark.parametrize("kind", KINDS)
def test_learning_goes_on_bit_for_bit_when_another_trainer_takes_the_state(kind: str) -> None:
    with make(kind) as first, make(kind, seed=1) as second:
        first.train(32)
        data = first.collect_rollouts()
        second.registry.restore(copy.deepcopy(first.registry.snapshot()))
        assert first.learn(data) == second.learn(data)
        assert first.digest() == second.digest()


def test_state_is_exact_when_every_part_is_moved_by_one_bit() -> None:
    """Each registered component reaches the digest."""
    with make("normalised") as trainer:
        trainer.train(32)
        before, snapshot = trainer.digest(), trainer.registry.snapshot()
        counted = {"policy", "ppo", "collector", "optimizer", "trainer_state", "stats_tracker"}
        # these say where and how a run continues, not what it learned
        assert set(snapshot) == counted | {"environments", "conditions", "policy_tracker"}
        changes: list[Callable[[], Any]] = [
            lambda: setattr(trainer.ppo, "num_updates", 9),
            lambda: setattr(trainer.collector, "num_rollouts", 9),
            lambda: setattr(trainer.state, "epoch", 9),
            lambda: trainer.state.stats.add_returns([0.5]),
            lambda: trainer.optimizer.param_groups[0].update(lr=0.5),
            lambda: trainer.optimizer.exp_avg[0].add_(1e-3),
            lambda: next(trainer.policy.parameters()).data.view(-1)[0].add_(1e-3),
            lambda: trainer.collector.meter.returns.__setitem__(0, 9.0),
        ]
        for change in changes:
            change()
            after = trainer.digest()
            assert after != before
            before = after


def test_the_digest_is_equal_when_the_hash_seed_of_python_differs() -> None:
    code = """
import torch
torch.set_num_threads(1)
from metta import PPOTrainer
from metta.envs.toy import NestedEnv
with PPOTrainer(None, NestedEnv, num_envs=4, n_steps=8, n_epochs=2, hidden_size=8) as trainer:
    history = trainer.train(64)
    print(trainer.digest(), list(history), trainer.manifest())
"""
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    with PPOTrainer(None, NestedEnv, **SMALL) as trainer:
        history = trainer.train(64)
        assert other.strip() == f"{trainer.digest()} {list(history)} {trainer.manifest()}"
