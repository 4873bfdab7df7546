"""Does a curriculum that follows learning progress beat drawing tasks evenly?

    python -m benchmarks.curriculum [--seeds 8] [--steps 250000] [--sets mixed,even]

Both train with the same settings and seeds for the same number of steps; the score of a policy is the mean
over all tasks of the set of its mean return per agent in fresh episodes. Differences are paired by seed;
intervals are bootstraps over seeds. The sets were written down before anything was run on them:

- mixed: four worlds to learn in, four where nothing can be earned, four whose little is earned at once
- even: the four worlds to learn in alone, where there is little to choose
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from metta import PPOTrainer
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.sim.simulation import run_episodes
from metta.sim.statistics import estimate, mean_of_means
from metta.train.presets import grid_config
from metta.train.settings import apply_settings
from metta.train.train_config import CurriculumConfig

EPISODES = 32
"""Fresh episodes per task, the same for every policy."""
KINDS = ("random", "learning_progress")
LEARNABLE = {
    "open": {},
    "scarce": {"num_resources": 6},
    "walls": {"wall_density": 0.2},
    "far": {"width": 16, "height": 16, "num_depots": 1},
}
BARREN = {f"barren_{size}": {"num_resources": 0, "width": size} for size in (9, 12, 15, 18)}
HOARD = {f"hoard_{size}": {"num_depots": 0, "width": size} for size in (9, 12, 15, 18)}
SETS = {"mixed": {**LEARNABLE, **BARREN, **HOARD}, "even": LEARNABLE}


def score(name: str, kind: str, seed: int, steps: int) -> dict[str, float]:
    """Mean return per agent in each task, after training on all of them."""
    tasks = CurriculumConfig(kind=kind, env="grid/gather", tasks=SETS[name])
    config = apply_settings(grid_config(), {"seed": seed, "total_timesteps": steps})
    curriculum = Curriculum(tasks)
    with PPOTrainer(None, curriculum, config=config) as trainer:
        trainer.train(steps)
        found = {}
        for task in curriculum.tasks:
            worlds = make_vec_env(task, num_envs=EPISODES)
            found[task.name] = run_episodes(trainer.policy, worlds, EPISODES, seed=977).mean
            worlds.close()
    return found


def compare(name: str, seeds: int, steps: int, pool: ProcessPoolExecutor) -> dict:
    jobs = {
        kind: [pool.submit(score, name, kind, seed, steps) for seed in range(1, seeds + 1)]
        for kind in KINDS
    }
    by_task = {kind: [job.result() for job in waiting] for kind, waiting in jobs.items()}
    means = {
        kind: np.array([np.mean(list(tasks.values())) for tasks in runs])
        for kind, runs in by_task.items()
    }
    difference = means["learning_progress"] - means["random"]
    found = {kind: estimate(mean_of_means, [values]).to_dict() for kind, values in means.items()}
    found["difference"] = estimate(mean_of_means, [difference]).to_dict()
    found["by_task"] = {
        kind: {task: float(np.mean([one[task] for one in runs])) for task in runs[0]}
        for kind, runs in by_task.items()
    }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--sets", default=",".join(SETS))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for name in options.sets.split(","):
            found = compare(name, options.seeds, options.steps, pool)
            print(
                f"\n{name}: {len(SETS[name])} tasks, {options.seeds} seeds, {options.steps:,} steps"
            )
            for row in (*KINDS, "difference"):
                one = found[row]
                print(f"  {row:18} {one['value']:7.3f}  ({one['low']:.3f} to {one['high']:.3f})")
            print(json.dumps({"set": name, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
