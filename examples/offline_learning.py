"""Collect now, learn later: rollouts in files, from several collectors.

python examples/offline_learning.py [--steps N]
"""

import argparse
import tempfile
from pathlib import Path

from metta import PPOTrainer, combine_rollouts, describe_rollout, load_rollout, save_rollout

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_480, help="agent steps in all")
steps = parser.parse_args().steps

collectors = [PPOTrainer(None, "CartPole-v1", seed=seed, num_envs=4) for seed in (1, 2)]
learner = PPOTrainer(None, "CartPole-v1", seed=3, learning_rate=1e-3, n_epochs=8)

with tempfile.TemporaryDirectory() as folder:
    for round_number in range(max(1, steps // 1024)):  # 2 collectors x 4 environments x 128 steps
        for collector in collectors:  # every collector plays the learner's present policy
            collector.policy.load_state_dict(learner.policy.state_dict())
        data = combine_rollouts([collector.collect_rollouts(128) for collector in collectors])
        path = save_rollout(Path(folder) / f"round_{round_number}.safetensors", data)
        learner.learn(path)
    print(describe_rollout(load_rollout(path)))
