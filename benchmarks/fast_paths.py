"""Do the fast paths learn what the plain ones learn?

    python -m benchmarks.fast_paths [--seeds 5] [--tasks cartpole lunar_lander grid] [--share 1.0]

Each task is trained with its preset, with every fast path on (the chosen actor, fused rollouts, compiled
updates) and off (eager actor, eager updates), from the same seeds. Compared are the returns of episodes at
a quarter, half, three quarters and the end of training, with intervals over seeds: both learn alike where
the intervals overlap.
"""

import argparse
import json
import os
import sys

import numpy as np
import torch

from metta import PPOTrainer
from metta.sim.statistics import estimate, mean_of_means
from metta.train.presets import PRESETS
from metta.train.settings import apply_settings

PATHS = {
    "fast": {"numerics.actor": "auto", "numerics.driver": "step"},
    "plain": {"numerics.actor": "eager", "numerics.driver": "eager"},
}
ENVS = {"cartpole": ("CartPole-v1", "metta/cartpole")}
"""Tasks that are played in more than one implementation."""
MARKS = (0.25, 0.5, 0.75, 1.0)


def curve(task: str, path: str, env: str | None, seed: int, share: float) -> list[float]:
    """Mean return of recent episodes at each of the `MARKS`."""
    config = PRESETS[task]()
    steps = round(config.trainer.total_timesteps * share)
    changes = {"seed": seed, "total_timesteps": steps, "num_workers": 0, "verbose": False}
    changes |= PATHS[path] | ({"env": env} if env else {})
    config = apply_settings(config, changes)
    found: list[tuple[float, float]] = []
    with PPOTrainer(None, config.env, config=config) as trainer:
        trainer.train(
            on_epoch_end=lambda state, metrics: found.append(
                (state.agent_step / steps, metrics["episode_return"])
            )
        )
    progress, returns = map(np.array, zip(*found, strict=True))
    return [float(returns[np.searchsorted(progress, min(mark, progress[-1]))]) for mark in MARKS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=["cartpole", "lunar_lander", "grid"])
    parser.add_argument("--share", type=float, default=1.0, help="of the preset's steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | path | " + " | ".join(f"{mark:.0%}" for mark in MARKS) + " |")
    print("|---" * (2 + len(MARKS)) + "|")
    for task in options.tasks:
        for env in ENVS.get(task, (None,)):
            for path in PATHS:
                curves = []
                for seed in range(1, options.seeds + 1):
                    curves.append(curve(task, path, env, seed, options.share))
                    line = {"task": task, "env": env, "path": path, "seed": seed}
                    print(json.dumps({**line, "returns": curves[-1]}), file=sys.stderr, flush=True)
                cells = [
                    estimate(mean_of_means, [np.array(column)])
                    for column in zip(*curves, strict=True)
                ]
                shown = " | ".join(f"{c.value:.1f} ({c.low:.1f} to {c.high:.1f})" for c in cells)
                print(f"| {env or task} | {path} | {shown} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
