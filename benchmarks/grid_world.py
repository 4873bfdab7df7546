"""Agent-steps per second of the grid world on one core, observations included: C beside NumPy.

    python -m benchmarks.grid_world [--seconds 1.0] [--repetitions 3]

An agent-step is one action of one agent. Actions are random and drawn before. "kernel" is the step
alone, "vec_env" is send and recv with observations stored as the environment's `obs_spec` says. Given is
the best of the repetitions, in millions per second of CPU time of this thread.
"""

import argparse
import time

import numpy as np

from metta.envs.grid import TASKS, GridVecEnv, GridWorldConfig, GridWorlds, native_available
from metta.envs.rows.gym_adapter import RowArrays
from metta.spaces import ObsLeaf, ObsSpec

NUM_ACTION_SETS = 32
CASES = {
    "64 worlds x 16 agents, 32 x 32, radius 3": (
        GridWorldConfig(width=32, height=32, num_agents=16, num_resources=48, horizon=512),
        64,
    ),
    "64 worlds x 4 agents, gather": (TASKS["gather"], 64),
    "64 worlds x 4 agents, maze": (TASKS["maze"], 64),
    "64 worlds x 4 agents, rooms": (TASKS["rooms"], 64),
    "64 worlds x 32 agents, crowd": (TASKS["crowd"], 64),
    "256 worlds x 64 agents, 64 x 64, radius 5": (
        GridWorldConfig(width=64, height=64, num_agents=64, view_radius=5, num_resources=200),
        256,
    ),
    "8 worlds x 4 agents, gather": (TASKS["gather"], 8),
}


def kernel_stepper(config, num_worlds, native):
    worlds = GridWorlds([config], num_worlds, native=native)
    num_rows = num_worlds * config.num_agents
    leaf = ObsLeaf("obs", (), (config.observation_size,), np.dtype(np.uint8), "discrete")
    rows = RowArrays.allocate(ObsSpec((leaf,)), num_rows, 0)
    obs = np.zeros((num_rows, config.observation_size), np.uint8)
    worlds.reset(range(num_worlds), obs)
    return num_rows, lambda actions: worlds.step(0, actions, obs, rows)


def env_stepper(config, num_worlds, native):
    envs = GridVecEnv([config], num_worlds, native=native)
    obs = envs.obs_spec.zeros(envs.num_rows)
    envs.reset(range(envs.num_rows), obs)

    def step(actions):
        envs.send(0, actions)
        envs.recv(0, obs)

    return envs.num_rows, step


def million_steps_per_second(make, config, num_worlds, *, native, seconds, repetitions):
    num_rows, step = make(config, num_worlds, native)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 5, (NUM_ACTION_SETS, num_rows))
    best = 0.0
    for _ in range(repetitions):
        num_steps, started = 0, time.thread_time()
        while (elapsed := time.thread_time() - started) < seconds or num_steps == 0:
            for actions in drawn:
                step(actions)
            num_steps += NUM_ACTION_SETS
        best = max(best, num_steps * num_rows / elapsed / 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    kinds = {"C kernel": (kernel_stepper, True), "C vec_env": (env_stepper, True)}
    if not native_available():
        print("the C kernels were not built: only NumPy is measured")
        kinds = {}
    kinds["NumPy kernel"] = (kernel_stepper, False)
    print(f"{'million agent-steps per second':46}" + "".join(f"{kind:>14}" for kind in kinds))
    for name, (config, num_worlds) in CASES.items():
        figures = [
            million_steps_per_second(
                make,
                config,
                num_worlds,
                native=native,
                seconds=options.seconds,
                repetitions=options.repetitions,
            )
            for make, native in kinds.values()
        ]
        print(f"{name:46}" + "".join(f"{figure:14.3f}" for figure in figures))


if __name__ == "__main__":
    main()
