"""A plain PPO loop in one file, as one would write it on an afternoon: eager torch."""

import gymnasium
import numpy as np
import torch
from job_settings import read_settings, report
from torch import Tensor, nn
from torch.distributions import Categorical


def mlp(outputs: int) -> nn.Sequential:
    """Two hidden layers of 64 tanh units."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Rollout:
    """Columns of a rollout, and its advantages."""

    def __init__(self, horizon: int, num_envs: int) -> None:
        shape = horizon, num_envs
        self.observations = torch.zeros(*shape, 4)
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.rewards, self.dones, self.values = (
            torch.zeros(shape) for _ in range(4)
        )

    def flat(self, following: Tensor, done: Tensor) -> list[Tensor]:
        """All that learning needs, a row per step."""
        advantages, running = torch.zeros_like(self.values), torch.zeros_like(done)
        for step in reversed(range(len(advantages))):
            running = self._advantage(step, following, done, running)
            advantages[step] = running
        columns = (
            self.observations,
            self.actions,
            self.log_probs,
            advantages,
            advantages + self.values,
            self.values,
        )
        return [column.flatten(0, 1) for column in columns]

    def _advantage(self, step: int, following: Tensor, done: Tensor, running: Tensor) -> Tensor:
        is_last = step == len(self.values) - 1
        alive = 1.0 - (done if is_last else self.dones[step + 1])
        value = following if is_last else self.values[step + 1]
        delta = self.rewards[step] + s.gamma * value * alive - self.values[step]
        return delta + s.gamma * s.gae_lambda * alive * running


def loss_of(batch: list[Tensor]) -> Tensor:
    """PPO's loss of a minibatch."""
    obs, action, old_log_prob, advantage, target, old_value = batch
    distribution = Categorical(logits=actor(obs))
    ratio = (distribution.log_prob(action) - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - s.clip_coef, 1 + s.clip_coef)
    surrogate = torch.min(advantage * ratio, advantage * clipped_ratio).mean()
    value = critic(obs).flatten()
    change = (value - old_value).clamp(-s.vf_clip_coef, s.vf_clip_coef)
    errors = (value - target).square(), (old_value + change - target).square()
    value_loss = 0.5 * torch.max(*errors).mean()
    return s.vf_coef * value_loss - surrogate - s.ent_coef * distribution.entropy().mean()


def collect(envs: gymnasium.vector.VectorEnv, rollout: Rollout, seen: Tensor, done: Tensor):
    """Fill a rollout; returns what comes after it."""
    for step in range(s.horizon):
        rollout.observations[step], rollout.dones[step] = seen, done
        distribution = Categorical(logits=actor(seen))
        action = distribution.sample()
        rollout.values[step] = critic(seen).flatten()
        rollout.actions[step] = action
        rollout.log_probs[step] = distribution.log_prob(action)
        next_seen, reward, terminated, truncated, _ = envs.step(action.numpy())
        rollout.rewards[step] = torch.tensor(reward, dtype=torch.float32)
        seen = torch.tensor(next_seen, dtype=torch.float32)
        done = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
    return seen, done


def main() -> None:
    """Train to the end."""
    mode = "vector_entry_point" if s.vector else "sync"
    envs = gymnasium.make_vec("CartPole-v1", num_envs=s.num_envs, vectorization_mode=mode)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=s.learning_rate, eps=1e-5)
    rollout = Rollout(s.horizon, s.num_envs)
    seen, done = torch.tensor(envs.reset(seed=1)[0]), torch.zeros(s.num_envs)
    for iteration in range(s.iterations):
        with torch.no_grad():
            seen, done = collect(envs, rollout, seen, done)
            columns = rollout.flat(critic(seen).flatten(), done)
        for _ in range(s.update_epochs):
            for rows in torch.randperm(s.batch).view(s.num_minibatches, -1):
                optimizer.zero_grad()
                loss_of([column[rows] for column in columns]).backward()
                nn.utils.clip_grad_norm_(parameters, s.max_grad_norm)
                optimizer.step()
        report((iteration + 1) * s.batch)


if __name__ == "__main__":
    s = read_settings()
    actor, critic = mlp(2), mlp(1)
    main()
