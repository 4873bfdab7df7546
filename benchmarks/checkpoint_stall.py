"""What saving costs a run: the stall of the thread that trains, and the price of a save beside a plain one.

    python -m benchmarks.checkpoint_stall [--intervals 8] [--repetitions 12] [--networks default wide lstm]

Three runs with equal settings take turns in one process, ten epochs each, so that whatever the machine
does hits all alike: one never saves, one saves every 50 epochs (the default), one after every epoch; the
last two keep the run in memory before each epoch, too. Counted are wall and CPU seconds of the thread that
trains, while only its own background save may run beside it. All must learn the same. The stall is the
time over that of the run that never saves; its interval is a bootstrap over blocks of ten epochs. Large
networks, whose epochs take longer, run for a quarter of the epochs.

Then a state of about 50 MB is committed (written, synchronised, hashed, read again), in turn with one plain
`safetensors.torch.save_file` of the same tensors.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import settings as s

INTERVAL, BLOCK = 50, 10
SAVING = {"off": 0, "default": INTERVAL, "every": 1}
NETWORKS = {
    "default": {"hidden_size": 64},
    "wide": {"hidden_size": 512},
    "lstm": {"core": "lstm", "hidden_size": 256},
}
LARGE_HIDDEN = 1440
"""Gives 4.2 million weights: with Adam's two moments about 50 MB."""


class Turns:
    """Lets threads run blocks of epochs one after the other, and notes how long each block took."""

    def __init__(self, names) -> None:
        self.order = list(names)
        self.turn = self.order[0]
        self.changed = threading.Condition()
        self.wall = {name: [] for name in names}
        self.cpu = {name: [] for name in names}
        self.started: dict[str, tuple[float, float]] = {}

    def begin(self) -> None:
        """Wait for the first turn: building takes time too, and draws random numbers."""
        self._wait(threading.current_thread().name)

    def end_block(self, settle) -> None:
        """A block of the calling run is over: `settle` what still runs for it; the others continue."""
        name = threading.current_thread().name
        if name in self.started:
            wall, cpu = self.started[name]
            self.wall[name].append(time.perf_counter() - wall)
            self.cpu[name].append(time.thread_time() - cpu)
        settle()
        self._pass_on(name)
        self._wait(name)
        self.started[name] = time.perf_counter(), time.thread_time()

    def leave(self) -> None:
        """The calling run has no more epochs."""
        self._pass_on(threading.current_thread().name, stays=False)

    def _wait(self, name: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == name)

    def _pass_on(self, name: str, *, stays: bool = True) -> None:
        with self.changed:
            place = self.order.index(name)
            if not stays:
                self.order.remove(name)
                place -= 1
            if self.order:
                self.turn = self.order[(place + 1) % len(self.order)]
            self.changed.notify_all()


def train(variant: str, network: str, epochs: int, turns: Turns) -> str:
    """A whole run; returns what it learned."""
    from metta import Trainer
    from metta.rl.hooks.base import TrainerHook
    from metta.train.settings import apply_settings
    from metta.train.train_config import TrainingConfig

    class Timing(TrainerHook):
        order = -1000  # before the run is kept in memory

        def on_epoch_start(self, trainer_state, checkpoint_hook) -> None:
            # a save falls into the middle of a block, whose later epochs it runs beside
            if trainer_state.epoch % BLOCK == BLOCK // 2:
                turns.end_block(checkpoint_hook.wait_for_save if checkpoint_hook else lambda: None)

    total = {"total_timesteps": epochs * s.BATCH, "checkpoint_interval": SAVING[variant]}
    quiet = {"verbose": False, "eval_episodes": 0, "monitor_seconds": 0}
    merged = {**s.METTA_SETTINGS, **NETWORKS[network], **total, **quiet}
    config = apply_settings(TrainingConfig(), merged)
    with tempfile.TemporaryDirectory() as folder, Trainer(config, run_dir=folder) as trainer:
        trainer.add_hook(Timing())
        trainer.train()
        return trainer.policy.parameter_hash()


def stall_job(network: str, intervals: int, first: int) -> None:
    """Train all variants in turns; print seconds per block."""
    s.require_one_thread()
    names = [*SAVING][first:] + [*SAVING][:first]
    turns, hashes = Turns(names), {}
    epochs = (intervals + 1) * INTERVAL + BLOCK  # the first interval warms up

    def run(variant: str) -> None:
        turns.begin()
        hashes[variant] = train(variant, network, epochs, turns)
        turns.leave()

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(set(hashes.values())) != 1 or len(hashes) != len(SAVING):
        raise SystemExit(f"the runs learned different things: {hashes}")
    kept = slice(INTERVAL // BLOCK, (intervals + 1) * INTERVAL // BLOCK)
    found = {"wall": turns.wall, "cpu": turns.cpu}
    print(json.dumps({k: {name: v[name][kept] for name in SAVING} for k, v in found.items()}))


def save_job(repetitions: int) -> None:
    """Commit a large state and save its tensors plainly, in turns; print the seconds of each."""
    import safetensors.torch

    from metta import Trainer
    from metta.rl.resume.checkpointer import TrainingCheckpointer
    from metta.store.checkpoints.files import TENSOR_FILE
    from metta.store.safe_read import read_tensors
    from metta.train.settings import apply_settings
    from metta.train.train_config import TrainingConfig

    total = {"total_timesteps": s.BATCH, "hidden_size": LARGE_HIDDEN, "verbose": False}
    config = apply_settings(TrainingConfig(), {**s.METTA_SETTINGS, **total, "eval_episodes": 0})
    seconds: dict[str, list[float]] = {
        "snapshot": [],
        "commit": [],
        "plain": [],
        "plain + fsync": [],
    }
    with tempfile.TemporaryDirectory(dir=".") as folder, Trainer(config) as trainer:
        trainer.train()
        parts, place = trainer.components, Path(folder)
        checkpointer = TrainingCheckpointer(place / "checkpoints")
        for _ in range(repetitions + 1):
            trainer.state.epoch += 1
            begin = time.perf_counter()
            pending = checkpointer.snapshot(parts.registry, parts.policy, trainer.state)
            seconds["snapshot"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            record = checkpointer.commit(pending)
            seconds["commit"].append(time.perf_counter() - begin)
            saved = Path(record.uri.removeprefix("file://"))
            tensors = {**pending.policy.tensors, **read_tensors(saved / TENSOR_FILE)[0]}
            begin = time.perf_counter()
            safetensors.torch.save_file(tensors, place / "plain.safetensors")
            seconds["plain"].append(time.perf_counter() - begin)
            with (place / "plain.safetensors").open("rb") as file:
                os.fsync(file.fileno())
            seconds["plain + fsync"].append(time.perf_counter() - begin)
        size = (place / "plain.safetensors").stat().st_size
    print(json.dumps({"bytes": size, **{name: values[1:] for name, values in seconds.items()}}))


def measure(*words: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.checkpoint_stall", "--job", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def bootstrap(own: list[float], plain: list[float]) -> tuple[float, float, float]:
    """Ratio of sums, and the range of 95 % of those of pairs that are drawn again and again."""
    generator = random.Random(0)
    pairs = list(zip(own, plain, strict=True))
    ratios = []
    for _ in range(2000):
        drawn = generator.choices(pairs, k=len(pairs))
        ratios.append(sum(a for a, _ in drawn) / sum(b for _, b in drawn))
    ratios.sort()
    return sum(own) / sum(plain), ratios[50], ratios[-51]


def report_stalls(results: dict[str, dict]) -> None:
    print("\n| network | saves | ms per epoch | stall, wall (95 %) | stall, CPU (95 %) |")
    print("|---|---|---|---|---|")
    for network, found in results.items():
        for variant in SAVING:
            wall = found["wall"][variant]
            cells = [f"{sum(wall) / len(wall) / BLOCK * 1e3:.2f}"]
            for clock in ("wall", "cpu"):
                ratio, low, high = bootstrap(found[clock][variant], found[clock]["off"])
                cells.append(f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})")
            print(f"| {network} | {variant} | {' | '.join(cells)} |")


def report_saves(found: dict) -> None:
    print(f"\na state of {found['bytes'] / 1e6:.1f} MB:")
    for name in ("snapshot", "commit", "plain", "plain + fsync"):
        print(f"  {name}: {statistics.median(found[name]) * 1e3:.1f} ms (median)")
    for base in ("plain", "plain + fsync"):
        ratio, low, high = bootstrap(found["commit"], found[base])
        print(f"  commit / {base}: {ratio:.2f} ({low:.2f} to {high:.2f}, 95 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--intervals", type=int, default=8, help="of 50 epochs, for each run")
    parser.add_argument("--repetitions", type=int, default=12, help="of the large save")
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/checkpoint_stall.json")
    )
    options = parser.parse_args()
    if options.job is not None:
        kind, *words = options.job
        save_job(int(words[0])) if kind == "save" else stall_job(kind, *map(int, words))
        return
    results: dict[str, dict] = {}
    for number, network in enumerate(options.networks):
        intervals = options.intervals if network == "default" else max(2, options.intervals // 4)
        results[network] = measure(network, str(intervals), str(number % len(SAVING)))
        print(f"{network} done", flush=True)
    saves = measure("save", str(options.repetitions))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"stalls": results, "saves": saves}, indent=1))
    report_stalls(results)
    report_saves(saves)


if __name__ == "__main__":
    main()
