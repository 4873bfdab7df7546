"""Several processes collect, one learns.

python examples/distributed_collection.py [--steps N] [--kind ray]
"""

import argparse

from metta import PPOTrainer, combine_rollouts, remote_workers

NUM_WORKERS, HORIZON = 2, 128
SETTINGS = {"num_envs": 4, "learning_rate": 1e-3, "n_epochs": 8, "verbose": False}


def main(steps: int, kind: str) -> None:
    with (
        PPOTrainer(None, "CartPole-v1", **SETTINGS) as learner,
        remote_workers(
            NUM_WORKERS, "CartPole-v1", learner.policy, kind=kind, **SETTINGS
        ) as workers,
    ):
        batch = NUM_WORKERS * SETTINGS["num_envs"] * HORIZON
        for number in range(max(1, steps // batch)):
            data = combine_rollouts(workers.collect_rollouts(HORIZON))
            losses = learner.learn(data)
            workers.load_weights(learner.policy)
            print(f"round {number}: {data['rewards'].numel()} steps of {NUM_WORKERS} workers, "
                  f"returns {workers.mean_return:.1f}, kl {losses['approx_kl']:.4f}")  # fmt: skip


if __name__ == "__main__":  # workers import this file
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_480, help="agent steps in all")
    parser.add_argument("--kind", choices=["process", "ray"], default="process")
    options = parser.parse_args()
    main(options.steps, options.kind)
