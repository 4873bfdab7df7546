"""Runs of every kind of actor, and of metta's own carts, continue equal to the bit."""

from pathlib import Path
from typing import Any

import pytest

from metta import PPOTrainer
from metta.agent.actors.c_program import native_available

SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 8, "n_epochs": 2, "hidden_size": 8}
RUNS = [
    ("CartPole-v1", {"actor": "eager"}),
    ("CartPole-v1", {"actor": "traced"}),
    ("CartPole-v1", {"actor": "traced", "core": "gru", "bptt_horizon": 4}),
    ("CartPole-v1", {"actor": "numpy"}),
    ("CartPole-v1", {"actor": "c"}),
    ("metta/cartpole", {"actor": "c", "normalize_obs": True, "normalize_returns": True}),
    ("metta/cartpole", {"actor": "numpy", "num_groups": 2}),
    ("grid/gather", {"actor": "c"}),
]


def trainer_of(env: str, options: dict[str, Any]) -> PPOTrainer:
    kwargs = {"horizon" if env == "grid/gather" else "max_episode_steps": 11}
    return PPOTrainer(None, env, env_kwargs=kwargs, **SMALL | options)


@pytest.mark.parametrize(
    ("env", "options"), RUNS, ids=[f"{env} {' '.join(map(str, o.values()))}" for env, o in RUNS]
)
def test_runs_are_equal_to_the_bit_when_saved_and_taken_up_again(
    env: str, options: dict[str, Any], tmp_path: Path
) -> None:
    if options["actor"] == "c" and not native_available():
        pytest.skip("metta.agent._native was not built (no C compiler?)")
    with trainer_of(env, options) as first, trainer_of(env, options) as second:
        steps = SMALL["n_steps"] * first.env.num_rows * 2
        first.train(steps)
        second.load(first.save(tmp_path))
        assert second.digest() == first.digest()
        assert second.plan.actor == options["actor"]
        first.train(steps)
        second.train(steps)
        assert second.digest() == first.digest()
