"""What the faces cost over a bare loop of the parts, in CPU seconds.

    python -m benchmarks.overhead [--repetitions 7] [--epochs 120]

Every repetition runs every face once, in turn, each in its own process, with equal settings, so that
their numbers are equal too. CPU seconds count all threads and are taken from the tenth epoch to the
last; ratios are to the bare loop of the same repetition, with a bootstrap interval of their median.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import settings as s

WARM_EPOCHS = 10
FACES = ("bare", "functional", "ppo_trainer", "trainer", "trainer_hooks")


def config_for(epochs: int, **more):
    from metta.train.settings import apply_settings
    from metta.train.train_config import TrainingConfig

    total = {"total_timesteps": epochs * s.BATCH, "verbose": False, "eval_episodes": 1}
    return apply_settings(TrainingConfig(), {**s.METTA_SETTINGS, **total, **more})


def bare(config, note) -> str:
    """The parts in a plain loop, as a user would write it."""
    from metta.agent.factory import make_policy
    from metta.envs.factory import make_vec_env
    from metta.rl.training_components import build_components

    env = make_vec_env(config.env, num_envs=s.NUM_ENVS)
    policy = make_policy(
        env.observation_space, env.action_space, config.agent, seed=config.trainer.seed
    )
    parts = build_components(config.trainer, policy, env)
    steps = 0
    while steps < config.trainer.total_timesteps:
        note()
        _, num_steps = parts.collector.collect()
        parts.ppo.update(parts.experience, progress=steps / config.trainer.total_timesteps)
        steps += num_steps
    note()
    return policy.parameter_hash()


def stepping(note):
    from metta.rl.functional_trainer import default_training_step

    def step(*parts):
        note()
        return default_training_step(*parts)

    return step


def functional(config, note) -> str:
    from metta.agent.factory import make_policy
    from metta.envs.factory import make_vec_env
    from metta.rl.functional_trainer import functional_training_loop

    env = make_vec_env(config.env)
    policy = make_policy(
        env.observation_space, env.action_space, config.agent, seed=config.trainer.seed
    )
    functional_training_loop(config.trainer, policy=policy, step_fn=stepping(note))
    note()
    return policy.parameter_hash()


def ppo_trainer(config, note) -> str:
    from metta import PPOTrainer

    with PPOTrainer(None, config.env, config=config) as trainer:
        trainer.train(on_epoch_end=lambda *_: note())
        return trainer.policy.parameter_hash()


def trainer(config, note, run_dir: str | None = None) -> str:
    from metta import Trainer

    with Trainer(config, run_dir=run_dir, step_fn=stepping(note)) as made:
        made.train()
        return made.policy.parameter_hash()


def trainer_hooks(config, note) -> str:
    """A whole run: checkpoints every 50 epochs, CSV, event log, monitor, heartbeat, progress lines."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        return trainer(config, note, folder)


def job(face: str, epochs: int) -> None:
    """Run one face and print its CPU seconds after the warm epochs, and the hash of what it learned."""
    s.require_one_thread()
    marks: list[float] = []
    config = config_for(epochs, verbose=face == "trainer_hooks")
    found = globals()[face](config, lambda: marks.append(time.process_time()))
    cpu = marks[epochs - 1] - marks[WARM_EPOCHS]
    print(json.dumps({"cpu": cpu / (epochs - 1 - WARM_EPOCHS), "hash": found}))


def measure(face: str, epochs: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.overhead", "--job", face, "--epochs", str(epochs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                         env=environment, check=True)  # fmt: skip
    return json.loads(run.stdout)


def interval(ratios: list[float]) -> tuple[float, float]:
    generator = random.Random(0)
    medians = sorted(
        statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000)
    )
    return medians[50], medians[-51]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--job", choices=FACES, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/overhead.json"))
    options = parser.parse_args()
    if options.job:
        job(options.job, options.epochs)
        return
    results: dict[str, list[float]] = {face: [] for face in FACES}
    hashes: set[str] = set()
    for repetition in range(options.repetitions):
        # another order each time: whoever comes first has the warmest machine
        for face in FACES[repetition % len(FACES) :] + FACES[: repetition % len(FACES)]:
            found = measure(face, options.epochs)
            results[face].append(found["cpu"])
            hashes.add(found["hash"])
        print(f"repetition {repetition + 1} done", flush=True)
    if len(hashes) != 1:
        raise SystemExit(f"the faces learned different things: {hashes}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2))
    print(
        "\n| face | CPU ms per epoch (median) | over the bare loop (median, 95 % interval) |\n|---|---|---|"
    )
    for face, seconds in results.items():
        ratios = [own / plain for own, plain in zip(seconds, results["bare"], strict=True)]
        low, high = interval(ratios)
        over = f"{statistics.median(ratios) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
        print(f"| {face} | {statistics.median(seconds) * 1e3:.1f} | {over} |")


if __name__ == "__main__":
    main()
