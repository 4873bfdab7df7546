"""A small training whose events reach hooks, without the loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from metta.agent.factory import make_policy
from metta.envs.factory import make_vec_env
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.hooks.registry import HookRegistry
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.training_state import TrainerState
from metta.train.train_config import TrainerConfig, TrainingConfig


class CountingEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of five steps, with numbers in their last info."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=options.get("seed"))
        self.time = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        info = {"success": 1.0, "agent/health": 0.5} if self.time == 5 else {}
        return obs, float(action), self.time == 5, False, info


def auxiliary_loss(new_values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = new_values.square().mean()
    return loss, {"size": loss}


class SmallRun:
    """Collects and learns; fires the events that a loop fires."""

    def __init__(self, config: TrainingConfig | None = None, **offers: Any) -> None:
        self.config = config or TrainingConfig(trainer=TrainerConfig(total_timesteps=160))
        trainer = self.config.trainer
        self.env = make_vec_env(CountingEnv, num_envs=2)
        spaces = self.env.observation_space, self.env.action_space
        self.policy = make_policy(*spaces, self.config.agent, seed=trainer.seed)
        self.optimizer = make_optimizer(self.policy.parameters(), trainer.optimizer)
        self.ppo = PPOOptimizer(self.policy, self.optimizer, "cpu", trainer.ppo, seed=trainer.seed)
        self.buffer = RolloutBuffer.for_env(self.policy, self.env, horizon=8)
        parts = (self.env, self.policy, self.buffer, "cpu")
        self.collector = RolloutCollector(*parts, seed=trainer.seed)
        self.state = TrainerState()
        self.custom_losses: list[Any] = []
        self.hooks = HookRegistry(
            self.state, self.policy, self.optimizer, config=self.config, **offers
        )

    @contextmanager
    def training(self, reason: str = "done") -> Iterator[None]:
        self.hooks.open()
        try:
            self.hooks.fire("on_training_start")
            yield
            self.hooks.fire("on_training_end", reason=reason)
        finally:
            self.hooks.close()

    def epoch(self) -> None:
        state, hooks = self.state, self.hooks
        hooks.fire("on_rollout_start")
        stats, num_steps = self.collector.collect()
        self.buffer.columns |= self.ppo.compute_advantages(self.buffer.columns)
        state.agent_step += num_steps
        state.stats.add_returns(stats["episode_return"])
        hooks.fire("on_rollout_end", rollout_stats=stats, experience=self.buffer)
        losses = self.ppo.update(self.buffer, self.custom_losses)
        hooks.fire("on_update_end", losses_stats=losses, experience=self.buffer)
        state.epoch += 1
        row = {"epoch": float(state.epoch), "episode_return": state.stats.mean_return, **losses}
        hooks.fire("on_epoch_end", losses_stats=row, experience=self.buffer)

    def epochs(self, count: int) -> None:
        for _ in range(count):
            self.epoch()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten().clone() for p in self.policy.parameters()])
