"""Do many agents learn together? Three seeds per task, against a policy that draws actions evenly.

A score is the mean return per agent of 100 fresh episodes, actions sampled, with its 95 % interval by
bootstrap. Every seed's interval must lie above that of the even policy, and the median of the scores must
reach the threshold. Run with `make learning`.
"""

import importlib.util
import statistics
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.agent.policy import Policy
from metta.envs import make_vec_env
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim.simulation import run_episodes
from metta.sim.statistics import Estimate, estimate, mean_of_means
from metta.train.presets import PRESETS
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SEEDS = (1, 2, 3)
EPISODES = 100


@dataclass(frozen=True)
class Task:
    env: str
    threshold: float
    package: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "spread": Task("pettingzoo:mpe2.simple_spread_v3", -20.0, "mpe2", "spread"),
    # the 24 hearts of an arena are 6 for each of its four agents
    "arena": Task(
        "mettagrid:arena_small",
        5.0,
        "mettagrid",
        settings={
            "total_timesteps": 200_000,
            "num_envs": 32,
            "horizon": 64,
            "minibatch_size": 1024,
            "learning_rate": 2e-3,
            "lr_schedule": "linear",
            "gamma": 0.98,
            "gae_lambda": 0.9,
            "ent_coef": 0.01,
            "agent.name": "mlp",
        },
    ),
}


class Even(nn.Module):
    """Every action is as likely as any other."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_actions))

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        leaf = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return self.logits.expand(len(leaf), -1), torch.zeros(len(leaf))


def scored(policy: Policy, task: Task, seed: int) -> Estimate:
    with closing(make_vec_env(task.env, num_envs=10)) as env:
        scores = run_episodes(policy, env, EPISODES, seed=10_000 + seed)
    return estimate(mean_of_means, [scores.returns], seed=seed)


def trained(task: Task, seed: int) -> tuple[Policy, Policy]:
    """The policy after training, and one that draws evenly from the same actions."""
    config = PRESETS[task.preset]() if task.preset else TrainingConfig()
    config = apply_settings(config, {**task.settings, "seed": seed})
    with PPOTrainer(None, task.env, config=config) as trainer:
        trainer.train()
        env = trainer.env
        even = Even(int(env.action_space.n))  # type: ignore[attr-defined]  # both tasks are Discrete
        return trainer.policy, Policy(even, env.observation_space, env.action_space)


def shown(score: Estimate) -> str:
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"


@pytest.mark.parametrize("name", TASKS)
def test_agents_beat_even_draws_and_reach_the_threshold_when_they_train(name: str) -> None:
    task = TASKS[name]
    if importlib.util.find_spec(task.package) is None:
        pytest.skip(f"needs {task.package} (an extra)")
    means = []
    for seed in SEEDS:
        began = time.monotonic()
        policy, even = trained(task, seed)
        seconds = time.monotonic() - began
        found, drawn = scored(policy, task, seed), scored(even, task, seed)
        print(f"\n{name}, seed {seed}: {shown(found)}; even draws {shown(drawn)}; {seconds:.0f} s")
        assert found.low > drawn.high
        means.append(found.value)
    print(f"{name}: median {statistics.median(means):.2f} (threshold {task.threshold})")
    assert statistics.median(means) >= task.threshold
