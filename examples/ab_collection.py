"""A/B test of two ways to collect: few long stretches, or many short ones, of the same total size.

Everything else is equal: settings of the learner, environment steps, seeds, and the episodes that
evaluate the result. The answer is given with its uncertainty, and may be "no difference was shown".

python examples/ab_collection.py [--steps N] [--seeds K]
"""

import argparse
import math
import statistics

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.sim import run_episodes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=12_288, help="environment steps of each training")
parser.add_argument("--seeds", type=int, default=4, help="trainings of each strategy")
options = parser.parse_args()

STRATEGIES = {
    "A: 4 environments x 256 steps": {"num_envs": 4, "n_steps": 256},
    "B: 32 environments x 32 steps": {"num_envs": 32, "n_steps": 32},
}


def score(seed: int, collection: dict[str, int]) -> float:
    """Train with one strategy; the mean return of 20 episodes that every policy plays alike."""
    with PPOTrainer(
        None, "CartPole-v1", seed=seed, learning_rate=1e-3, n_epochs=8, **collection
    ) as trainer:
        for _ in range(max(1, options.steps // 1024)):
            trainer.learn(trainer.collect_rollouts())
        eval_env = make_vec_env("CartPole-v1", num_envs=10)
        return run_episodes(trainer.policy, eval_env, 20, seed=12345).mean


results = {}
for name, collection in STRATEGIES.items():
    scores = [score(seed, collection) for seed in range(options.seeds)]
    spread = statistics.stdev(scores) if len(scores) > 1 else math.inf
    results[name] = scores
    print(f"{name}: mean {statistics.mean(scores):.1f}, deviation {spread:.1f}  "
          f"({', '.join(f'{value:.1f}' for value in scores)})")  # fmt: skip

# equal seeds are pairs: their differences have less spread than the scores themselves
differences = [b - a for a, b in zip(*results.values(), strict=True)]
mean = statistics.mean(differences)
if len(differences) < 2:
    print("conclusion: one seed says nothing about the difference; give --seeds 4 or more")
else:
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    print(f"B - A: {mean:+.1f} with a standard error of {error:.1f} over {len(differences)} seeds")
    if abs(mean) > 3 * error:
        print(f"conclusion: {'B' if mean > 0 else 'A'} scored higher at {options.steps:,} steps")
    else:
        print("conclusion: no difference was shown; more seeds would narrow the error")
