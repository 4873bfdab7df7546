"""What the faces cost over a bare loop of the parts, in CPU seconds.

    python -m benchmarks.overhead [--repetitions 5] [--epochs 150]

All faces train at the same time in one process, with equal settings, and take turns after every epoch,
so that whatever the machine does hits all alike. Counted are the CPU seconds of each face's own thread,
and for the run with hooks also those of its sinks and its monitor. Every face must learn the same.
Ratios are to the bare loop; the interval is a bootstrap over blocks of epochs.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.speed.workloads import CARTPOLE, PPO_SETTINGS

NUM_ENVS, HORIZON = 8, 128
BATCH = NUM_ENVS * HORIZON
SETTINGS = {
    **PPO_SETTINGS,
    "env": CARTPOLE,
    "num_envs": NUM_ENVS,
    "horizon": HORIZON,
    "learning_rate": 2.5e-4,
    "numerics.driver": "step",
}
"""With compiled updates, beside which any overhead weighs most."""
WARM_EPOCHS = 10
BLOCK = 5
"""Epochs that are drawn together: neighbours are alike."""
FACES = ("bare", "functional", "ppo_trainer", "trainer", "trainer_hooks")


class Turns:
    """Lets threads run one after the other, and notes how much CPU time each turn took."""

    def __init__(self, names) -> None:
        self.order = list(names)
        self.turn = self.order[0]
        self.changed = threading.Condition()
        self.seconds = {name: [] for name in names}
        self.started: dict[str, float] = {}

    def wait(self) -> None:
        """Wait for a turn: building draws random numbers too, so it has one of its own."""
        name = threading.current_thread().name
        with self.changed:
            self.changed.wait_for(lambda: self.turn == name)

    def next_epoch(self) -> None:
        """An epoch of the calling face is over: let the others have one."""
        name = threading.current_thread().name
        if name in self.started:
            self.seconds[name].append(time.thread_time() - self.started[name])
        self._pass_on(name)
        self.wait()
        self.started[name] = time.thread_time()

    def leave(self) -> None:
        """The calling face has no more epochs."""
        self._pass_on(threading.current_thread().name, stays=False)

    def _pass_on(self, name: str, *, stays: bool = True) -> None:
        with self.changed:
            place = self.order.index(name)
            if not stays:
                self.order.remove(name)
                place -= 1
            if self.order:
                self.turn = self.order[(place + 1) % len(self.order)]
            self.changed.notify_all()


def config_for(epochs: int, **more):
    from metta.train.settings import apply_settings
    from metta.train.train_config import TrainingConfig

    total = {"total_timesteps": epochs * BATCH, "verbose": False, "eval_episodes": 1}
    return apply_settings(TrainingConfig(), {**SETTINGS, **total, **more})


def bare(config, note) -> str:
    """The parts in a plain loop, as a user would write it."""
    from metta.agent.factory import make_policy
    from metta.envs.factory import make_vec_env
    from metta.rl.training_components import build_components

    env = make_vec_env(config.env, num_envs=NUM_ENVS)
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


def background_seconds() -> float:
    """CPU seconds of threads that no face runs in: sinks and the monitor of the run with hooks."""
    others = [t for t in threading.enumerate() if t.name not in (*FACES, "MainThread")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in others if t.ident)


def job(first: int, epochs: int) -> None:
    """Train with every face, in turns; print CPU seconds per epoch and what each learned."""
    import torch

    torch.set_num_threads(1)  # small networks run best on one thread
    order = FACES[first:] + FACES[:first]
    turns, hashes, background = Turns(order), {}, []

    def run(face: str) -> None:
        def note() -> None:
            if face == "trainer_hooks":
                background.append(background_seconds())
            turns.next_epoch()

        turns.wait()
        config = config_for(epochs, verbose=face == "trainer_hooks")
        hashes[face] = globals()[face](config, note)
        turns.leave()

    threads = [threading.Thread(target=run, args=(face,), name=face) for face in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(set(hashes.values())) != 1 or len(hashes) != len(FACES):
        raise SystemExit(f"the faces learned different things: {hashes}")
    count = epochs - 1 - WARM_EPOCHS
    seconds = {face: turns.seconds[face][WARM_EPOCHS : WARM_EPOCHS + count] for face in FACES}
    extra = (background[-1] - background[WARM_EPOCHS]) / (len(background) - 1 - WARM_EPOCHS)
    seconds["trainer_hooks"] = [own + extra for own in seconds["trainer_hooks"]]
    print(json.dumps(seconds))


def measure(first: int, epochs: int) -> dict[str, list[float]]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.overhead",
        "--first",
        str(first),
        "--epochs",
        str(epochs),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                         env=environment, check=True)  # fmt: skip
    return json.loads(run.stdout)


def interval(own: list[float], plain: list[float]) -> tuple[float, float]:
    """95 % of the ratios of sums, blocks of epochs drawn again and again."""
    generator = random.Random(0)
    starts = range(0, len(own) - BLOCK + 1, BLOCK)
    blocks = [(sum(own[i : i + BLOCK]), sum(plain[i : i + BLOCK])) for i in starts]
    ratios = []
    for _ in range(2000):
        drawn = generator.choices(blocks, k=len(blocks))
        ratios.append(sum(a for a, _ in drawn) / sum(b for _, b in drawn))
    ratios.sort()
    return ratios[50], ratios[-51]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/overhead.json"))
    options = parser.parse_args()
    if options.first is not None:
        job(options.first, options.epochs)
        return
    results: dict[str, list[float]] = {face: [] for face in FACES}
    for repetition in range(options.repetitions):
        # another face begins each time
        for face, seconds in measure(repetition % len(FACES), options.epochs).items():
            results[face] += seconds
        print(f"repetition {repetition + 1} done", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2))
    print("\n| face | CPU ms per epoch | over the bare loop (95 % interval) |\n|---|---|---|")
    plain = results["bare"]
    for face, seconds in results.items():
        low, high = interval(seconds, plain)
        over = f"{sum(seconds) / sum(plain) - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
        print(f"| {face} | {sum(seconds) / len(seconds) * 1e3:.2f} | {over} |")


if __name__ == "__main__":
    main()
