"""Training for a long time: memory, descriptors, threads, processes and shared memory stay what they were.

    python -m faults.soak [--minutes 20] [--out soak.jsonl]

One process trains without a break, in four phases of equal length: one long run each in this process, with
workers, and with an LSTM; then many short runs one after the other. Checkpoints, evaluations, CSV,
TensorBoard, monitor and progress lines are on. It looks at itself every few seconds, always at the same
point: before an epoch with no save under way, or between two runs. After a warm-up the counts must not
change at all, and memory must not grow (by the slope of Theil and Sen, which outliers do not move).
"""

import argparse
import contextlib
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from faults.training import STEPS_PER_EPOCH, trainer_of
from faults.trial import OK, Trial
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

PHASES = ("serial", "workers", "lstm", "many runs")
COUNTS = ("descriptors", "threads", "processes", "shared_memory")
MEMORY = ("rss", "processes_rss")
WARM_UP = 1 / 3
"""Share of a phase that is not judged: caches fill, and the allocator finds out how much it needs."""
MAX_SLOPE = 8 * 2**20
"""Bytes per hour."""
MIN_SECONDS = 120.0
"""Memory is judged where it was watched for so long after the warm-up: less shows noise alone."""
MIN_SAMPLES = 6
"""Of a phase, however slow the machine is."""
_SETTINGS = {"env": "CartPole-v1", "total_timesteps": 10**9, "checkpoint_interval": 10, "tensorboard": True,
             "evaluate_interval": 50, "eval_episodes": 2, "monitor_seconds": 1.0}  # fmt: skip
_LONG_RUNS: dict[str, dict[str, Any]] = {
    "serial": {},
    "workers": {"num_workers": 2},
    "lstm": {"core": "lstm"},
}
_SHORT_RUNS = ("mlp", "lstm", "workers")
_SHORT = {"total_timesteps": 4 * STEPS_PER_EPOCH, "tensorboard": True}


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """One trial for each phase and measure of a soak of `count` minutes."""
    return judged(soak(60.0 * count, folder), seed)


def soak(seconds: float, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Train for so long in a separate process; returns the samples of each phase."""
    samples = folder / "samples.jsonl"
    words = ["--seconds", str(seconds), "--out", str(samples), "--folder", str(folder)]
    command = [sys.executable, "-m", "faults.soak", *words]
    root = Path(__file__).parent.parent
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, list[dict[str, float]]] = {phase: [] for phase in PHASES}
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        found[sample.pop("phase")].append(sample)
    return found


def judged(samples: dict[str, list[dict[str, float]]], seed: int) -> Iterator[Trial]:
    """The result of each phase for each measure."""
    for phase, found in samples.items():
        late = settled(found)
        watched = late[-1]["seconds"] - late[0]["seconds"] if late else 0.0
        for measure in COUNTS:
            values = [sample[measure] for sample in late]
            yield Trial("soak", seed, f"{phase}: {measure}", constant(values), detail={
                "samples": len(values), "value": values[-1] if values else None})  # fmt: skip
        for measure in MEMORY if watched >= MIN_SECONDS else ():
            slope = slope_of([(sample["seconds"], sample[measure]) for sample in late]) * 3600
            outcome = OK if slope <= MAX_SLOPE else f"grows by {slope / 2**20:.1f} MiB per hour"
            detail = {"mib_per_hour": round(slope / 2**20, 3), "seconds": round(watched)}
            if measure == "rss":
                detail["samples"] = found
            yield Trial("soak", seed, f"{phase}: {measure}", outcome, detail=detail)


def settled(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    """The samples after the warm-up."""
    if not samples:
        return []
    begin, end = samples[0]["seconds"], samples[-1]["seconds"]
    return [sample for sample in samples if sample["seconds"] >= begin + WARM_UP * (end - begin)]


def constant(values: Sequence[float]) -> str:
    if len(values) < 3:
        return f"only {len(values)} samples"
    return OK if len(set(values)) == 1 else f"not constant: {sorted(set(values))}"


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Median of the slopes between any two points (Theil 1950, Sen 1968)."""
    pairs = itertools.combinations(points, 2)
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])


class Samples:
    """Writes down what the process uses, at most every few seconds, until a phase is over."""

    def __init__(self, path: Path, interval: float) -> None:
        self.path, self.interval = path, interval
        self.began = time.monotonic()
        self.begin("", 0.0)

    def begin(self, phase: str, seconds: float) -> None:
        self.phase, self.count = phase, 0
        self._next, self._deadline = 0.0, time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the phase has lasted long enough."""
        return self.count >= MIN_SAMPLES and time.monotonic() >= self._deadline

    def look(self, epoch: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self.count = now + self.interval, self.count + 1
        moment = {"phase": self.phase, "seconds": round(now - self.began, 3), "epoch": epoch}
        with self.path.open("a") as file:
            file.write(json.dumps({**moment, **usage()}) + "\n")


def usage() -> dict[str, int]:
    """What this process and those below it use now."""
    own, below = psutil.Process(), psutil.Process().children(recursive=True)
    return {
        "rss": own.memory_info().rss,
        "processes_rss": sum(process.memory_info().rss for process in below),
        "descriptors": num_descriptors(),
        "threads": num_threads(),
        "processes": len(below),
        "shared_memory": sum(shared_memory_of(process.pid) for process in (own, *below)),
    }


def shared_memory_of(pid: int) -> int:
    """Bytes of it that a process has touched; files in /dev/shm may belong to other processes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("RssShmem:"))
    return 1024 * int(kilobytes)


def num_descriptors() -> int:
    """The fewest of a few looks: threads open files for a moment, and the monitor those of /proc."""
    return fewest(_open_now)


def _open_now() -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += not str(link.readlink()).startswith("/proc/")
    return count


def num_threads() -> int:
    """The fewest of a few looks: a thread that has ended lingers a little."""
    return fewest(lambda: sum(1 for _ in Path("/proc/self/task").iterdir()))


def fewest(count: Callable[[], int]) -> int:
    """The smallest of some counts, a little apart."""
    counts = []
    for _ in range(10):
        counts.append(count())
        time.sleep(0.005)
    return min(counts)


def work(seconds: float, samples: Samples, folder: Path) -> None:
    """All phases, in this process."""
    for phase in PHASES:
        samples.begin(phase, seconds / len(PHASES))
        if phase in _LONG_RUNS:
            train_long(_LONG_RUNS[phase], samples, folder / phase)
        else:
            # starting workers takes longer than a short phase lasts
            names = _SHORT_RUNS if seconds >= 60 else _SHORT_RUNS[:-1]
            train_often(names, samples, folder / phase)


class Watcher(TrainerHook):
    """Looks before epochs, and ends the run when its time is over."""

    order = 1000

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def on_epoch_start(self, trainer_state: Any, checkpoint_hook: Any) -> None:
        checkpoint_hook.wait_for_save()
        self.samples.look(trainer_state.epoch)
        if self.samples.is_over:
            trainer_state.request_stop("the time is over")


def train_long(settings: dict[str, Any], samples: Samples, folder: Path) -> None:
    """One run."""
    config = apply_settings(TrainingConfig(), {**_SETTINGS, **settings})
    with Trainer(config, run_dir=folder) as trainer:
        trainer.add_hook(Watcher(samples))
        trainer.train()


def train_often(names: Sequence[str], samples: Samples, folder: Path) -> None:
    """Short runs, one after the other."""
    for number in itertools.count():
        for name in names:
            with trainer_of(name, folder / f"{name}-{number}", **_SHORT) as trainer:
                trainer.train()
            del trainer
        gc.collect()
        samples.look(number)
        if samples.is_over:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seconds is not None:
        interval = min(3.0, options.seconds / 200)
        work(options.seconds, Samples(options.out, interval), options.folder)
        return
    with tempfile.TemporaryDirectory() as folder, options.out.open("w") as log:
        for trial in judged(soak(60.0 * options.minutes, Path(folder)), seed=0):
            print(trial.to_json(), file=log)
            detail = {name: value for name, value in trial.detail.items() if name != "samples"}
            print(f"{trial.point}: {trial.outcome} {detail}")


if __name__ == "__main__":
    main()
