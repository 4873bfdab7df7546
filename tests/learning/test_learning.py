"""Does it learn? Five seeds per task; the median score of the final policies must reach a threshold.

A score is the mean return of 100 fresh episodes, actions sampled. Run with `make learning`.
"""

import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from metta.envs.toy import MaskedCorridorEnv, MemoryEnv
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim.simulation import run_episodes
from metta.train.presets import PRESETS
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SEEDS = (1, 2, 3, 4, 5)
EPISODES = 100


@dataclass(frozen=True)
class Task:
    env: Any
    threshold: float
    steps: int
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def memory_env() -> MemoryEnv:
    return MemoryEnv(delay=8)


def masked_env() -> MaskedCorridorEnv:
    return MaskedCorridorEnv()


MEMORY = {"horizon": 64, "num_envs": 16, "learning_rate": 1e-3, "ent_coef": 0.01}

TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 100_000, "cartpole"),
    "acrobot": Task("Acrobot-v1", -100.0, 300_000, "acrobot"),
    "lunar_lander": Task("LunarLander-v3", 200.0, 1_000_000, "lunar_lander"),
    "pendulum": Task("Pendulum-v1", -250.0, 300_000, "pendulum"),
    # a random policy earns about 1.5
    "grid": Task("grid/gather", 20.0, 400_000, "grid"),
    # the best return is 0.7: four double moves
    "masked": Task(masked_env, 0.65, 40_000, settings={"learning_rate": 1e-3}),
    "masked_lstm": Task(masked_env, 0.65, 60_000, settings={"core": "lstm", "learning_rate": 1e-3}),
    "memory_lstm": Task(memory_env, 0.95, 200_000, settings={**MEMORY, "core": "lstm"}),
    "memory_gru": Task(memory_env, 0.95, 200_000, settings={**MEMORY, "core": "gru"}),
}

MEMORYLESS = Task(memory_env, 0.5, 100_000, settings=MEMORY)
CHANCE_MARGIN = 0.1
"""Two standard errors of 100 fair guesses."""


def train_and_score(name: str, task: Task, seed: int) -> float:
    config = PRESETS[task.preset]() if task.preset else TrainingConfig()
    config = apply_settings(config, {**task.settings, "total_timesteps": task.steps, "seed": seed})
    with PPOTrainer(None, task.env, config=config) as trainer:
        batch = config.trainer.rollout.horizon * trainer.env.num_rows
        # whole epochs only, and not one step more than the task allows
        trainer.train(task.steps - task.steps % batch)
        assert trainer.state.agent_step <= task.steps, name
        scores = run_episodes(trainer.policy, trainer.env, EPISODES, seed=10_000 + seed)
    return scores.mean


def score_all(name: str, task: Task) -> list[float]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        waiting = [pool.submit(train_and_score, name, task, seed) for seed in SEEDS]
        scores = [future.result() for future in waiting]
    print(f"\n{name}: {[round(score, 1) for score in scores]} (threshold {task.threshold})")
    return scores


@pytest.mark.parametrize("name", TASKS)
def test_median_score_reaches_the_threshold_when_trained_on(name: str) -> None:
    scores = score_all(name, TASKS[name])
    assert statistics.median(scores) >= TASKS[name].threshold


def test_score_stays_at_chance_when_a_memory_task_meets_a_memoryless_policy() -> None:
    scores = score_all("memoryless", MEMORYLESS)
    assert statistics.median(scores) <= MEMORYLESS.threshold + CHANCE_MARGIN
