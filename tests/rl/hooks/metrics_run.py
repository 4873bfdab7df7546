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
from metta.rl.hooks.registry import HookRegistry
from metta.rl.loop import default_training_step
from metta.rl.training_components import build_components
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
    """The parts of a run, and its epochs one by one."""

    def __init__(self, config: TrainingConfig | None = None, **offers: Any) -> None:
        self.config = config or TrainingConfig(
            trainer=TrainerConfig(total_timesteps=160, verbose=False)
        )
        trainer = self.config.trainer
        env = make_vec_env(CountingEnv, num_envs=2)
        spaces = env.observation_space, env.action_space
        self.policy = make_policy(*spaces, self.config.agent, seed=trainer.seed)
        self.state = TrainerState()
        self.hooks = HookRegistry(self.state, **offers)
        buffer = RolloutBuffer.for_env(self.policy, env, horizon=8)
        self.parts = build_components(
            trainer, self.policy, env, experience=buffer, hooks=self.hooks
        )
        self.hooks.config = self.config

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
        parts = self.parts
        row = default_training_step(self.state, parts, parts.config, parts.experience)
        self.hooks.fire("on_epoch_end", losses_stats=row, experience=parts.experience)

    def epochs(self, count: int) -> None:
        for _ in range(count):
            self.epoch()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten().clone() for p in self.policy.parameters()])
