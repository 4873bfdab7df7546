"""Collect and learn with the parts themselves: the loop is yours.

python examples/direct_training_with_components.py [--steps N]
"""

import argparse

import torch

from metta import PPOOptimizer, RolloutBuffer, RolloutCollector, make_policy
from metta.envs import make_vec_env
from metta.rl import make_optimizer
from metta.train import OptimizerConfig, PPOConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=60_000, help="agent steps of the run")
steps = parser.parse_args().steps

torch.set_num_threads(1)  # the trainers choose it themselves; small networks are faster on one
vecenv = make_vec_env("CartPole-v1", num_envs=8)
policy = make_policy(vecenv.observation_space, vecenv.action_space, seed=1)
experience = RolloutBuffer.for_env(policy, vecenv, horizon=128)
optimizer = make_optimizer(policy.parameters(), OptimizerConfig(learning_rate=1e-3))
collector = RolloutCollector(vecenv, policy, experience, "cpu", seed=1)
ppo = PPOOptimizer(policy, optimizer, "cpu", PPOConfig(update_epochs=8), seed=1)

agent_step = epoch = 0
while agent_step < steps:
    stats, num_steps = collector.collect()
    losses = ppo.update(experience)
    agent_step += num_steps
    epoch += 1
    if epoch % 10 == 0 and stats["episode_return"]:
        mean = sum(stats["episode_return"]) / len(stats["episode_return"])
        print(f"{agent_step:>7} steps  return {mean:6.1f}  kl {losses['approx_kl']:.4f}")
print(f"done: {agent_step} steps")
