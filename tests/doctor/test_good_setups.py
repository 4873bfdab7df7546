"""The doctor has nothing to say against sound set-ups."""

import functools
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

import tests.doctor.planted_faults as planted
import tests.doctor.teams as teams
from metta import PPOTrainer, check_env
from metta.doctor import Report
from metta.envs import toy

STEPS = 1000

GOOD: dict[str, dict[str, Any]] = {
    **{
        name: {"env": name}
        for name in (
            "CartPole-v1",
            "Acrobot-v1",
            "Pendulum-v1",
            "MountainCar-v0",
            "FrozenLake-v1",
            "Taxi-v4",
            "Blackjack-v1",
            "LunarLander-v3",
            "grid/gather",
            "metta/cartpole",
            "pettingzoo:mpe2.simple_spread_v3",
        )
    },
    "corridor": {"env": toy.CorridorEnv},
    "masks in info": {"env": toy.MaskedCorridorEnv},
    "masks in observations": {
        "env": functools.partial(toy.MaskedCorridorEnv, mask_in="observation")
    },
    "memory": {"env": toy.MemoryEnv, "core": "gru"},
    "continuous target": {"env": toy.ContinuousTargetEnv},
    "several actions": {"env": toy.MultiDiscreteEnv},
    "nested observations": {"env": toy.NestedEnv},
    "a vector environment": {"env": gymnasium.make_vec("CartPole-v1", num_envs=4)},
    "an environment that exists": {"env": gymnasium.make("CartPole-v1")},
    "agents who join, leave and come back": {"env": teams.Guests},
    "agents who see their end": {"env": teams.Ending},
    "rows that are reset one step later": {"env": SyncVectorEnv([teams.Short] * 4)},
    "a list of factories": {"env": [planted.Walk, planted.Walk]},
    "a network and a loss of one's own": {
        "env": planted.Walk,
        "policy": planted.Network(),
        "losses": [planted.sound_loss],
    },
    "an LSTM of one's own": {"env": planted.Walk, "policy": planted.Lstm()},
    "large numbers that are normalised": {
        "env": planted.HugeReward,
        "normalize_returns": True,
        "normalize_observations": True,
    },
}


@pytest.mark.parametrize("setup", GOOD.values(), ids=list(GOOD))
def test_nothing_is_wrong_when_the_set_up_is_sound(setup: dict[str, Any]) -> None:
    report: Report = check_env(**setup, play_steps=STEPS)
    assert not report.problems, str(report)
    assert report.is_healthy
    assert any(finding.name.startswith("probe: ") for finding in report.findings)


def test_the_network_is_not_trained_when_copies_of_it_are_probed() -> None:
    network = planted.Network()
    before = {name: part.clone() for name, part in network.state_dict().items()}
    check_env(planted.Walk, network, play_steps=300)
    assert all(bool((part == before[name]).all()) for name, part in network.state_dict().items())


def test_the_batch_is_that_of_the_recipe_when_training_would_follow_one() -> None:
    report = check_env("CartPole-v1", play_steps=STEPS, probes=False)
    with PPOTrainer(None, "CartPole-v1", verbose=False) as trainer:
        rollout, ppo = trainer.config.trainer.rollout, trainer.config.trainer.ppo
    assert trainer.recipe is not None
    (found,) = (one.found for one in report.findings if one.name == "batch")
    assert found.startswith(f"{rollout.num_envs * rollout.horizon:,} steps per rollout, ")
    assert f"{ppo.num_minibatches} minibatches" in found
    assert found.endswith(f"{ppo.update_epochs} passes")
