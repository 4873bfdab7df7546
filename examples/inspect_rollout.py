"""Look at the data before learning from it, and see what broken data looks like.

python examples/inspect_rollout.py [--steps N] [--plot rewards.png]
"""

import argparse

import torch

from metta import PPOTrainer, describe_rollout
from metta.errors import MettaError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_024, help="agent steps to collect")
parser.add_argument("--plot", metavar="FILE", help="draw values and returns of the first row")
options = parser.parse_args()

trainer = PPOTrainer(None, "CartPole-v1", seed=1, num_envs=8)
before = trainer.policy.parameter_hash()
data = trainer.collect_rollouts(max(1, options.steps // 8))
assert trainer.policy.parameter_hash() == before  # collecting never learns

# 1. shapes, ranges, episodes, warnings
report = describe_rollout(data)
print(report)

# 2. questions of one's own: columns are plain tensors [T, N, ...]
shares = torch.bincount(data["actions"].flatten(), minlength=2) / data["actions"].numel()
print(f"actions: {', '.join(f'{share:.0%}' for share in shares)}")
ended = data["terminated"] | data["truncated"]
first_steps = int(data["episode_starts"].sum())
print(
    f"episodes: {int(ended.sum())} ended, {first_steps} began, {len(report.episode_returns)} counted"
)
error = data["returns"] - data["values"]
explained = 1 - error.var() / data["returns"].var()
print(
    f"the critic explains {explained:.0%} of the returns' variance (an untrained one: about none)"
)

# 3. what would go wrong: a reward that is not a number, found by the report and refused by learn
broken = {name: column.clone() for name, column in data.items()}
broken["rewards"][3, 5] = float("nan")
print(f"broken on purpose: {describe_rollout(broken).warnings[0]}")
try:
    trainer.learn(broken)
except MettaError as refusal:
    print(f"learn() refuses it: {refusal}")
assert trainer.policy.parameter_hash() == before  # nothing was learned from it

# 4. the same data, repaired, can be learned from
broken["rewards"][3, 5] = 1.0
print(f"repaired: policy loss {trainer.learn(broken)['policy_loss']:.4f}")

if options.plot:
    import matplotlib.pyplot as plt  # extra `plot`

    plt.plot(data["returns"][:, 0], label="return")
    plt.plot(data["values"][:, 0], label="value")
    plt.xlabel("step of the first row")
    plt.legend()
    plt.savefig(options.plot)
    print(f"drew {options.plot}")
