"""Learn from older rollouts again, with V-trace to correct for the policy having changed since.

Every training below spends the same number of environment steps. The last one has no memory but
learns as often, so that more learning is not mistaken for better learning. One seed is an anecdote:
ab_collection.py shows how to compare.

python examples/experience_replay.py [--steps N]
"""

import argparse
from collections import deque

from torch import Tensor

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.sim import run_episodes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=12_288, help="environment steps of each training")
steps = parser.parse_args().steps


def train(num_old: int, passes: int) -> None:
    """Learn from each new rollout at once, and once more with each of the `num_old` next ones."""
    memory: deque[dict[str, Tensor]] = deque(maxlen=num_old)
    spent, kl = 0, 0.0
    with PPOTrainer(
        None,
        "CartPole-v1",
        seed=1,
        learning_rate=1e-3,
        n_epochs=passes,
        # V-trace computes advantages anew for the policy of the moment and weights them by how
        # likely it still is to do what the older policy did
        advantage_estimator="vtrace",
    ) as trainer:
        while spent < steps:
            new = trainer.collect_rollouts(128)
            spent += int(new["valid"].sum())
            for rollout in (*memory, new):
                kl = trainer.learn(rollout)["approx_kl"]
            memory.append(new)
        eval_env = make_vec_env("CartPole-v1", num_envs=8)
        score = run_episodes(trainer.policy, eval_env, 20, seed=99).mean
        print(
            f"memory of {num_old}, {passes} passes per update: {spent} steps, "
            f"{trainer.ppo.num_updates} updates, last kl {kl:.4f}, score {score:.1f}"
        )


train(num_old=0, passes=2)
train(num_old=1, passes=2)
train(num_old=0, passes=4)
print("the last two learn equally much: compare them before keeping a memory")
