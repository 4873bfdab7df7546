"""Workers and a central trainer that share one policy: in whichever order they are built."""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from metta import PPOTrainer, combine_rollouts
from metta.agent.policy import Policy

ENV = "CartPole-v1"
SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 16, "hidden_size": 8, "verbose": False}
SEEDS = {"first worker": 11, "second worker": 12, "central trainer": 13}
AGENTS: dict[str, dict[str, Any]] = {
    "C actor": {"actor": "c"},
    "NumPy actor": {"actor": "numpy"},
    "eager actor": {"actor": "eager"},
    "normalised": {"normalize_observations": True, "normalize_returns": True},
    "recurrent": {"agent_name": "lstm"},
    "adamw": {"optimizer_name": "adamw", "weight_decay": 0.01},
}


def shared_policy(agent: dict[str, Any]) -> Policy:
    with PPOTrainer(None, ENV, seed=1, **SMALL, **agent) as maker:
        return maker.policy


def learn_together(
    trainers: dict[str, PPOTrainer], num_updates: int
) -> list[tuple[str, dict[str, float]]]:
    workers = [trainers["first worker"], trainers["second worker"]]
    central_trainer = trainers["central trainer"]
    found = []
    for _ in range(num_updates):
        rollouts = [worker.collect_rollouts(16) for worker in workers]
        combined = combine_rollouts(rollouts)
        metrics = central_trainer.learn(combined)
        found.append((central_trainer.digest(), metrics))
    hashes = {trainer.policy.parameter_hash() for trainer in trainers.values()}
    assert len(hashes) == 1
    return found


def outcome(
    order: Sequence[str], agent: dict[str, Any], driver: str = "auto"
) -> list[tuple[str, dict[str, float]]]:
    """What comes of trainers built in this `order`; the central one learns by the `driver`."""
    policy, settings = shared_policy(agent), {**SMALL, **agent}
    drivers = {"central trainer": {"driver": driver}}
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(
                PPOTrainer(policy, ENV, seed=SEEDS[name], **settings, **drivers.get(name, {}))
            )
            for name in order
        }
        return learn_together(trainers, 3)


@pytest.mark.parametrize("agent", AGENTS)
def test_results_are_equal_in_every_order_of_construction(agent: str) -> None:
    orders = list(itertools.permutations(SEEDS))
    # every order with the first agent, the opposite ones with the others
    found = [outcome(order, AGENTS[agent]) for order in orders[:: 1 if agent == "C actor" else 5]]
    assert all(one == found[0] for one in found)
    digests = [digest for digest, _ in found[0]]
    assert len(set(digests)) == len(digests)  # the policy did learn


@pytest.mark.slow
def test_results_are_equal_when_updates_are_compiled() -> None:
    first = outcome(["central trainer", "first worker", "second worker"], {}, "step")
    assert first == outcome(["first worker", "second worker", "central trainer"], {}, "step")


@pytest.mark.parametrize("agent", AGENTS)
def test_a_worker_that_is_built_after_learning_acts_as_the_central_trainer_learned(
    agent: str,
) -> None:
    """A replaced worker: the new one and the central trainer continue to share the policy."""
    settings = {**SMALL, **AGENTS[agent]}
    found = []
    for late in (False, True):
        policy = shared_policy(AGENTS[agent])
        with ExitStack() as stack:
            made = {
                name: stack.enter_context(PPOTrainer(policy, ENV, seed=seed, **settings))
                for name, seed in SEEDS.items()
            }
            spare = None if late else PPOTrainer(policy, ENV, seed=99, **settings)
            learn_together(made, 2)
            spare = spare or PPOTrainer(policy, ENV, seed=99, **settings)
            made["first worker"] = stack.enter_context(spare)
            found.append(learn_together(made, 2))
    assert found[0] == found[1]


def test_workers_may_learn_too_when_they_share_the_policy() -> None:
    policy = shared_policy({})
    with (
        PPOTrainer(policy, ENV, seed=1, **SMALL) as one,
        PPOTrainer(policy, ENV, seed=2, **SMALL) as other,
    ):
        hashes = [policy.parameter_hash()]
        for trainer in (one, other, one, other):
            trainer.learn(trainer.collect_rollouts(16))
            hashes.append(policy.parameter_hash())
        assert one.policy.parameter_hash() == other.policy.parameter_hash()
    assert len(set(hashes)) == len(hashes)
