"""A plain single-file PPO loop, as one would write it on an afternoon: eager torch, one file."""

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks import settings as s

s.require_one_thread()


def mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, s.HIDDEN), nn.Tanh(),
        nn.Linear(s.HIDDEN, s.HIDDEN), nn.Tanh(),
        nn.Linear(s.HIDDEN, outputs),
    )  # fmt: skip


envs = gymnasium.make_vec("CartPole-v1", num_envs=s.NUM_ENVS, vectorization_mode="sync")
actor, critic = mlp(2), mlp(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, lr=s.LEARNING_RATE, eps=1e-5)
shape = (s.HORIZON, s.NUM_ENVS)
observations, actions = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64)
log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
seen = torch.tensor(envs.reset(seed=1)[0])
done = torch.zeros(s.NUM_ENVS)

for iteration in range(s.TOTAL_STEPS // s.BATCH):
    for step in range(s.HORIZON):
        observations[step], dones[step] = seen, done
        with torch.no_grad():
            distribution = Categorical(logits=actor(seen))
            action = distribution.sample()
            values[step] = critic(seen).flatten()
        actions[step], log_probs[step] = action, distribution.log_prob(action)
        next_seen, reward, terminated, truncated, _ = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward, dtype=torch.float32)
        seen = torch.tensor(next_seen)
        done = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
    with torch.no_grad():
        following = critic(seen).flatten()
        advantages, running = torch.zeros(shape), torch.zeros(s.NUM_ENVS)
        for step in reversed(range(s.HORIZON)):
            last = step == s.HORIZON - 1
            alive = 1.0 - (done if last else dones[step + 1])
            value = following if last else values[step + 1]
            delta = rewards[step] + s.GAMMA * value * alive - values[step]
            running = delta + s.GAMMA * s.GAE_LAMBDA * alive * running
            advantages[step] = running
        returns = advantages + values
    flat = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantages, returns)]
    for _ in range(s.UPDATE_EPOCHS):
        for index in torch.randperm(s.BATCH).view(s.NUM_MINIBATCHES, -1):
            obs, act, old_log_prob, advantage, target = (x[index] for x in flat)
            distribution = Categorical(logits=actor(obs))
            ratio = (distribution.log_prob(act) - old_log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            surrogate = torch.min(
                advantage * ratio, advantage * ratio.clamp(1 - s.CLIP, 1 + s.CLIP)
            ).mean()
            value_loss = 0.5 * (critic(obs).flatten() - target).square().mean()
            loss = s.VALUE * value_loss - surrogate - s.ENTROPY * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, s.MAX_GRAD_NORM)
            optimizer.step()
    s.report((iteration + 1) * s.BATCH)
