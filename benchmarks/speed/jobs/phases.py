"""The whole loop beside its phases alone: environment, inference, learning, in turns in one process.

The share that is reported is ``(1 / env + 1 / inference + 1 / learning) / (1 / loop)``, each a number of
steps per second: 1 means that the loop costs nothing beyond its phases.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.speed.jobs.telling import report, report_result, told
from benchmarks.speed.jobs.train import env_of, make_trainer
from metta.agent.actions.action_spec import draw_noise
from metta.agent.evaluation_mode import evaluating
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.vec_env import VecEnv, group_slices
from metta.rl.ppo_trainer import PPOTrainer

__all__ = ["measure_phases"]

Round = Callable[[], object]


def measure_phases(details: Mapping[str, Any]) -> dict[str, float]:
    """Medians of rounds: steps and processor seconds of the loop, steps of each phase, and the share."""
    env = make_vec_env(env_of(details), num_envs=details["settings"]["num_envs"])
    with make_trainer(details) as trainer, torch.no_grad():
        horizon = trainer.collector.experience.horizon
        batch = horizon * env.num_rows
        rounds = {
            "loop": _loop(trainer),
            "environment": _environment(env, horizon),
            "inference": _inference(trainer, horizon),
            "learning": _learning(trainer),
        }
        seconds: dict[str, list[float]] = {name: [] for name in rounds}
        cpu: list[float] = []
        with trainer.plan.applied():
            for number in range(max(3, details["steps"] // batch)):
                for name, play in rounds.items():
                    started, cpu_started = time.perf_counter(), time.process_time()
                    play()
                    seconds[name].append(time.perf_counter() - started)
                    if name == "loop":
                        cpu.append(time.process_time() - cpu_started)
                report((number + 1) * batch)
    env.close()
    warm = len(seconds["loop"]) // 5
    speeds = {name: batch / statistics.median(spent[warm:]) for name, spent in seconds.items()}
    alone = sum(1 / speed for name, speed in speeds.items() if name != "loop")
    share = alone * speeds["loop"]
    return {
        "steps_per_second": speeds.pop("loop"),
        "cpu_seconds_per_million": statistics.median(cpu[warm:]) / batch * 1e6,
        **speeds,
        "share": share,
    }


def _loop(trainer: PPOTrainer) -> Round:
    """One epoch: collect, then learn from what was collected."""

    def play() -> None:
        trainer.collector.collect()
        with torch.enable_grad():
            trainer.ppo.update(trainer.collector.experience)

    return play


def _learning(trainer: PPOTrainer) -> Round:
    def play() -> None:
        with torch.enable_grad():
            trainer.ppo.update(trainer.collector.experience)

    return play


def _environment(env: VecEnv, horizon: int) -> Round:
    """Steps with actions that were drawn before."""
    groups = group_slices(env.num_rows, env.num_groups)
    obs = env.obs_spec.zeros(env.num_rows)
    parts = [{key: leaf[rows] for key, leaf in obs.items()} for rows in groups]
    env.reset(row_seeds(0, env.num_rows), obs)
    env.action_space.seed(0)
    drawn = [env.action_space.sample() for _ in range(horizon * env.num_rows)]
    actions = np.array(drawn).reshape(horizon, env.num_rows, *np.shape(drawn[0]))

    def play() -> None:
        for step in actions:
            for group, rows in enumerate(groups):
                env.send(group, step[rows])
            for group, part in enumerate(parts):
                env.recv(group, part)

    return play


def _inference(trainer: PPOTrainer, horizon: int) -> Round:
    """Actions for the observations of the last rollout, with noise that was drawn before."""
    collector, policy = trainer.collector, trainer.policy
    generator = np.random.Generator(np.random.PCG64(0))
    noise = draw_noise(policy.action_spec, generator, horizon, collector.vec_env.num_rows)

    def play() -> None:
        buffer = collector.experience
        slots = [buffer.obs_slots(rows) for rows in collector.groups]
        states = [policy.initial_state(rows.stop - rows.start) for rows in collector.groups]
        with evaluating(policy):
            collector.actor.refresh(policy)
            for step in range(horizon):
                masks = buffer.mask_array
                for group, rows in enumerate(collector.groups):
                    _, states[group] = collector.actor.act(
                        slots[group][step],
                        states[group],
                        buffer.start_array[step, rows],
                        None if masks is None else masks[step, rows],
                        noise[step, rows],
                    )

    return play


def main() -> None:
    """Measure, and print."""
    for name, number in measure_phases(told()).items():
        report_result(name, number)


if __name__ == "__main__":
    main()
