"""A PPO update in plain PyTorch, for comparison: nothing of metta is used here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ReferenceSettings:
    gamma: float
    gae_lambda: float
    clip: float
    value_clip: float | None
    value_weight: float
    entropy_weight: float
    max_grad_norm: float | None


class ReferenceNet(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int, *, continuous: bool) -> None:
        super().__init__()
        self.actor, self.critic = self._tower(num_inputs, num_outputs), self._tower(num_inputs, 1)
        self.log_std = nn.Parameter(torch.zeros(num_outputs)) if continuous else None

    @staticmethod
    def _tower(num_inputs: int, num_outputs: int) -> nn.Sequential:
        layers = [nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(64, num_outputs))

    def judge(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = self.critic(obs).squeeze(-1)
        if self.log_std is None:
            categorical = torch.distributions.Categorical(logits=self.actor(obs))
            return categorical.log_prob(actions), categorical.entropy(), values
        normal = torch.distributions.Normal(self.actor(obs), self.log_std.exp())
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1), values


def reference_advantages(rollout: dict[str, Tensor], settings: ReferenceSettings) -> Tensor:
    """GAE, one number at a time."""
    num_steps, num_rows = rollout["rewards"].shape
    advantages = torch.zeros(num_steps, num_rows, dtype=torch.float64)
    for row in range(num_rows):
        following = 0.0
        for step in reversed(range(num_steps)):
            terminated = bool(rollout["terminated"][step, row])
            ended = terminated or bool(rollout["truncated"][step, row])
            reached = 0.0 if terminated else float(rollout["next_values"][step, row])
            error = float(rollout["rewards"][step, row]) + settings.gamma * reached
            error -= float(rollout["values"][step, row])
            following = error + settings.gamma * settings.gae_lambda * following * (not ended)
            advantages[step, row] = following
    return advantages


def reference_update(
    net: ReferenceNet,
    optimizer: torch.optim.Optimizer,
    rollout: dict[str, Tensor],
    minibatches: Sequence[np.ndarray],
    settings: ReferenceSettings,
) -> dict[str, float]:
    advantages = reference_advantages(rollout, settings)
    flat = {name: column.flatten(0, 1) for name, column in rollout.items()}
    flat |= {
        "advantages": advantages.flatten(),
        "returns": (advantages + rollout["values"]).flatten(),
    }
    sums: dict[str, float] = {}
    for index in minibatches:
        batch = {name: column[torch.from_numpy(index)] for name, column in flat.items()}
        terms = reference_loss(net, batch, settings)
        optimizer.zero_grad()
        terms["total_loss"].backward()
        limit = float("inf") if settings.max_grad_norm is None else settings.max_grad_norm
        terms["grad_norm"] = nn.utils.clip_grad_norm_(net.parameters(), limit)
        optimizer.step()
        for name, term in terms.items():
            sums[name] = sums.get(name, 0.0) + float(term.detach())
    return {name: total / len(minibatches) for name, total in sums.items()}


def reference_loss(
    net: ReferenceNet, batch: dict[str, Tensor], settings: ReferenceSettings
) -> dict[str, Tensor]:
    log_probs, entropy, values = net.judge(batch["observations"].double(), batch["actions"])
    log_ratio = log_probs - batch["log_probs"]
    ratio, advantages = log_ratio.exp(), batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    errors = (values - batch["returns"]) ** 2
    if settings.value_clip is not None:
        moved = (values - batch["values"]).clamp(-settings.value_clip, settings.value_clip)
        errors = torch.max(errors, (batch["values"] + moved - batch["returns"]) ** 2)
    value_loss, entropy_loss = 0.5 * errors.mean(), -entropy.mean()
    total = policy_loss + settings.value_weight * value_loss
    return {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "total_loss": total + settings.entropy_weight * entropy_loss,
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clipfrac": ((ratio - 1).abs() > settings.clip).double().mean(),
    }
