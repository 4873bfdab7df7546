"""Does a policy that trains against its past selves beat its own earlier checkpoints?

    python -m benchmarks.self_play [--seeds 4] [--steps 400000]

Eight agents compete for few resources: what one takes, another does not get. Half of them learn, the
others are past selves. Afterwards the final policy plays half of the agents and a checkpoint the other
half, in the same episodes; given is the mean return per agent of each and the difference, with a bootstrap
interval over the episodes of all seeds.
"""

import argparse
import copy
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from metta import PPOTrainer
from metta.envs.factory import make_vec_env
from metta.sim.simulation import run_episodes
from metta.sim.statistics import estimate, mean_of_means
from metta.train.presets import grid_config
from metta.train.settings import apply_settings

ENV = "grid/gather"
WORLD = {"num_agents": 8, "num_resources": 6, "width": 12, "height": 12}
EPISODES = 64
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)
"""When checkpoints are taken, as a share of all steps; the first is the policy as it began."""


def margins(seed: int, steps: int) -> dict[float, np.ndarray]:
    """Checkpoint -> returns ``[E, 2]`` of the final policy's agents and of the checkpoint's."""
    settings = {"seed": seed, "total_timesteps": steps, "env": ENV, "env_kwargs": WORLD}
    play = {"learner_share": 0.5, "self_play_interval": 8}
    config = apply_settings(grid_config(), {**settings, **play})
    saved = {}

    def keep(state, _metrics):
        for share in SHARES:
            if share not in saved and state.agent_step >= share * steps:
                saved[share] = copy.deepcopy(trainer.policy)

    with PPOTrainer(None, ENV, config=config) as trainer:
        saved[SHARES[0]] = copy.deepcopy(trainer.policy)
        trainer.train(steps, on_epoch_end=keep)
        final = trainer.policy
        found = {}
        for share, opponent in saved.items():
            worlds = make_vec_env(ENV, num_envs=EPISODES, env_kwargs=WORLD)
            scores = run_episodes(
                final, worlds, EPISODES, seed=977, npc_policy=opponent, policy_agents_pct=0.5
            )
            worlds.close()
            own, returns = scores.agents.evaluated, scores.agents.returns
            found[share] = np.stack([returns[:, own].mean(1), returns[:, ~own].mean(1)], 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400_000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        seeds = range(1, options.seeds + 1)
        waiting = [pool.submit(margins, seed, options.steps) for seed in seeds]
        runs = [job.result() for job in waiting]
    print(f"{options.seeds} seeds, {options.steps:,} steps, {EPISODES} episodes each")
    print("checkpoint  final policy  checkpoint  difference")
    for share in SHARES:
        final, earlier = (np.concatenate([run[share][:, side] for run in runs]) for side in (0, 1))
        gap = estimate(mean_of_means, [run[share][:, 0] - run[share][:, 1] for run in runs])
        print(
            f"{share:10.0%}  {final.mean():12.2f}  {earlier.mean():10.2f}  {gap.value:+.2f} "
            f"({gap.low:+.2f} to {gap.high:+.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
