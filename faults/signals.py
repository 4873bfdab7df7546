"""SIGTERM and SIGINT at random instants of `metta train`: one, two in a row, or before it trains.

After each the process must have ended with the right code and last line, without leaving a process or
shared memory behind, and with a complete checkpoint of the last epoch that it counted.
"""

import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from faults.trial import OK, Trial
from faults.zygote import Child, Zygote
from metta.cli.main import main
from metta.errors import MettaError
from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events
from metta.store.checkpoints.files import read_newest_checkpoint

SETTINGS = ["CartPole-v1", "total_timesteps=100_000_000", "num_envs=4", "horizon=8", "hidden_size=8",
            "update_epochs=1", "num_minibatches=1", "eval_episodes=0", "checkpoint_interval=7",
            "monitor_seconds=0.05"]  # fmt: skip
VARIANTS = {"serial": [], "lstm": ["core=lstm"], "workers": ["num_workers=2"]}
_LIMIT_SECONDS = 10.0


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` signals, in turn over the variants."""
    random_numbers = random.Random(seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where this runs behind a `&`
    with Zygote(
        ["faults.training:warm_up", "metta.cli.training"], cwd=Path(__file__).parent.parent
    ) as zygote:
        for number in range(count):
            variant = random_numbers.choice(["serial", "serial", "lstm", "workers"])
            number_of_signal = random_numbers.choice([signal.SIGTERM, signal.SIGINT])
            how = random_numbers.choices(["once", "twice", "early"], [8, 1, 1])[0]
            run = folder / f"run-{number}"
            child = zygote.start("faults.signals:train", variant=variant, folder=str(run))
            began, code = disturb(child, run, number_of_signal, how, random_numbers)
            outcome = verdict(code, number_of_signal, run, how)
            if outcome == OK and (left := shared_memory_of(child.pid)):
                outcome = f"shared memory was left behind: {left}"
            seconds = time.monotonic() - began
            if outcome == OK and seconds > _LIMIT_SECONDS:
                outcome = f"took {seconds:.1f} s"
            point = f"{variant}, {signal.Signals(number_of_signal).name} {how}"
            yield Trial("signals", seed, point, outcome, detail={"seconds": round(seconds, 3)})


def train(variant: str, folder: str) -> None:
    """`metta train` in this process."""
    path = Path(folder)
    path.mkdir()
    output = os.open(path / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    words = [
        "train",
        *SETTINGS,
        *VARIANTS[variant],
        "--run",
        path.name,
        "--output",
        str(path.parent),
    ]
    sys.exit(main(words))


def disturb(
    child: Child, run: Path, number: int, how: str, random_numbers: random.Random
) -> tuple[float, int]:
    """Send the signal; returns when it was sent, and the exit code."""
    if how != "early":
        wait_for_epochs(child, run, 2)
    time.sleep(random_numbers.uniform(0, 0.3))
    before = set(children_of(child.pid))
    child.kill(number)
    began = time.monotonic()
    if how == "twice":
        time.sleep(random_numbers.uniform(0, 0.05))
        child.kill(number)
    code = child.wait(60)
    deadline = time.monotonic() + 5.0  # a busy machine takes its time to clean up
    while any(Path(f"/proc/{pid}").exists() for pid in before) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [pid for pid in before if Path(f"/proc/{pid}").exists()]
    return began, code if not left else -1000


def wait_for_epochs(child: Child, run: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.zygote.status_of(child.pid) is None:
        events = run / "events.jsonl"
        if events.exists() and len(metric_rows(events)) >= number:
            return
        time.sleep(0.01)


def verdict(code: int, number: int, run: Path, how: str) -> str:
    expected = 128 + number
    said = (run / "output.txt").read_text(errors="replace") if (run / "output.txt").exists() else ""
    if code == -1000:
        return "processes were left behind"
    if how == "early" and code in (expected, -number):
        return OK  # before anything was trained there is nothing to save
    if code != expected:
        return f"exit code {code}: {said[-200:]}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoint = read_newest_checkpoint(run / "checkpoints")
    except (MettaError, Warning) as error:
        return f"unreadable: {error}"
    if checkpoint is None:
        return "no checkpoint"
    last = metric_rows(run / "events.jsonl")[-1].epoch
    if how == "once" and checkpoint.epoch != last:
        return f"the checkpoint is of epoch {checkpoint.epoch}, the last row of {last}"
    if how == "once" and "stopped at" not in said:
        return f"no last line: {said[-200:]}"
    ends = [
        event.payload["outcome"]
        for event in read_events(run / "events.jsonl")
        if event.kind == "run_end"
    ]
    return OK if ends == ["stopped"] else f"the event log ends with {ends}"


def children_of(pid: int) -> list[int]:
    """Processes that have this one as an ancestor."""
    found, waiting = [], [pid]
    while waiting:
        try:
            text = Path(f"/proc/{waiting[0]}/task/{waiting[0]}/children").read_text()
        except OSError:
            text = ""
        waiting.pop(0)
        more = [int(word) for word in text.split()]
        found += more
        waiting += more
    return found


def shared_memory_of(pid: int) -> list[str]:
    """Files that a process made; others may belong to other processes."""
    return [path.name for path in Path("/dev/shm").iterdir() if f"-{pid}-" in path.name]
