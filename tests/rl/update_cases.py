"""Set-ups whose updates are run by every driver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.compiled.trace import TracedGraph
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.driver import Driver
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig

HORIZON, ROWS = 16, 4
SMALL, PLAIN, ADAM = AgentConfig(hidden_size=16), PPOConfig(), OptimizerConfig(learning_rate=1e-3)


class OwnNetwork(nn.Module):
    """A network as a user writes it, with a buffer and a frozen part."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)
        self.fixed = nn.Linear(4, 16)
        self.fixed.requires_grad_(False)
        self.temperature = 1.0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs) + self.fixed(obs).tanh() * self.scale
        return self.actor(features) / self.temperature, self.critic(features).squeeze(-1)


def smooth(new_values: Tensor, returns: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss of one's own, with a metric."""
    error = nn.functional.smooth_l1_loss(new_values, returns)
    return error, {"error": error}


@dataclass(frozen=True)
class Case:
    """A policy, its losses and its settings."""

    agent: AgentConfig | Callable[[], nn.Module] = SMALL
    ppo: PPOConfig = PLAIN
    optimizer: OptimizerConfig = ADAM
    losses: tuple[CustomLoss, ...] = ()

    def policy(self) -> Policy:
        """The same weights at each call."""
        env = make_vec_env("CartPole-v1")
        space, actions = env.observation_space, env.action_space
        env.close()
        if isinstance(self.agent, AgentConfig):
            return make_policy(space, actions, self.agent)
        torch.manual_seed(1)
        return Policy(self.agent(), space, actions)

    def learner(
        self, policy: Policy, make: Callable[[torch.optim.Optimizer], Driver]
    ) -> PPOOptimizer:
        """A learner with a driver."""
        optimizer = make_optimizer(policy.parameters(), self.optimizer)
        return PPOOptimizer(
            policy, optimizer, "cpu", self.ppo, optimizer_config=self.optimizer,
            driver=make(optimizer),
        )  # fmt: skip

    def rollouts(self, count: int) -> list[dict[str, Tensor]]:
        """What a policy of these weights collects."""
        policy = self.policy()
        with_env = make_vec_env("CartPole-v1", num_envs=ROWS)
        buffer = RolloutBuffer.for_env(policy, with_env, HORIZON, bptt_horizon=4)
        collector = RolloutCollector(with_env, policy, buffer, seed=3)
        found = []
        for _ in range(count):
            collector.collect()
            found.append({name: column.clone() for name, column in buffer.columns.items()})
        with_env.close()
        return found


class Interpreted:
    """A traced graph, run operation by operation."""

    made = 0

    def __init__(self, graph: TracedGraph) -> None:
        Interpreted.made += 1
        self._graph, self.held = graph.module, graph.held

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return list(self._graph(*tensors, *self.held))


CASES = {
    "mlp": Case(),
    "kl_stop": Case(ppo=PPOConfig(target_kl=1e-4, vf_clip_coef=0.2)),
    "normalised": Case(AgentConfig(hidden_size=16, normalize_observations=True, normalize_returns=True)),
    "uneven": Case(ppo=PPOConfig(num_minibatches=3)),
    "pieces": Case(ppo=PPOConfig(gradient_accumulation=2), losses=(CustomLoss(smooth, schedule="linear"),)),
    "own_network": Case(OwnNetwork, losses=(CustomLoss(smooth, 0.5),)),
    "vtrace": Case(ppo=PPOConfig(advantage_estimator="vtrace")),
    "adamw": Case(optimizer=OptimizerConfig(name="adamw", weight_decay=0.01, schedule="linear")),
    "sgd": Case(optimizer=OptimizerConfig(name="sgd", momentum=0.9)),
    "lstm": Case(AgentConfig(hidden_size=16, core="lstm")),
    "gru": Case(AgentConfig(hidden_size=16, core="gru")),
}  # fmt: skip
