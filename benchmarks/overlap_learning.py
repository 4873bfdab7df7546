"""Does a run that collects one update ahead learn as well as one that does not?

    python -m benchmarks.overlap_learning [--seeds 5] [--only CartPole-v1] [--kinds overlap]

Both train with the recipe of the environment, the same settings and seeds, for the same number of steps; a
score is the mean return of fresh episodes with sampled actions. Intervals are bootstraps over seeds. Runs
of `overlap` collect in this process: the numbers are those of other processes, to the bit.
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import torch

from metta import PPOTrainer
from metta.envs.factory import make_vec_env
from metta.sim.simulation import run_episodes
from metta.sim.statistics import estimate, mean_of_means

TASKS = {"CartPole-v1": 80_000, "LunarLander-v3": 150_000, "grid/gather": 150_000}
"""Environment -> agent steps."""
KINDS = {"in turn": {}, "vtrace in turn": {"advantage_estimator": "vtrace"},
         "overlap": {"collect.overlap": True},
         "overlap, vtrace": {"collect.overlap": True, "advantage_estimator": "vtrace"}}  # fmt: skip
EPISODES = 40


def score(env: str, kind: str, seed: int) -> float:
    """Mean return of the policy that this run ends with."""
    with PPOTrainer(None, env, seed=seed, num_shards=2, verbose=False, **KINDS[kind]) as trainer:
        trainer.train(TASKS[env])
        worlds = make_vec_env(env, num_envs=8)
        try:
            return run_episodes(trainer.policy, worlds, EPISODES, seed=seed + 1000).mean
        finally:
            worlds.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=sorted(TASKS), default=list(TASKS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for env in options.only:
            waiting = {
                kind: [pool.submit(score, env, kind, seed) for seed in range(1, options.seeds + 1)]
                for kind in options.kinds
            }
            print(f"\n{env}: {TASKS[env]:,} steps, {options.seeds} seeds", flush=True)
            for kind, jobs in waiting.items():
                values = [job.result() for job in jobs]
                one = estimate(mean_of_means, [values]).to_dict()
                print(f"  {kind:16} {one['value']:8.2f}  ({one['low']:.2f} to {one['high']:.2f})")
                print(json.dumps({"env": env, "kind": kind, "scores": values}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
