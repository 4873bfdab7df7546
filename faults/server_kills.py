"""The fork server of a run killed while it starts workers, guardian and background evaluation.

A trial is a run by the command line whose server is killed, once, twice or each time that there is one, at
a random moment after it was started. A run ends well, or with one line that names what happened.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from faults.trial import OK, Trial

RUN = [
    "num_envs=2", "num_workers=2", "n_steps=16", "hidden_size=8", "total_timesteps=128",
    "eval_episodes=1", "evaluate_interval=2", "evaluation.where=process",
]  # fmt: skip
ALWAYS = 1_000
_LOOK_SECONDS = 0.02
"""Looking is slow, and must not slow down what is watched."""
_MAX_SECONDS = 2.0
"""A server has started all its processes by then."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    random_numbers = random.Random(seed)
    for number in range(count):
        kills = (1, 2, ALWAYS)[number % 3]
        delay = random_numbers.choice([0.0, random_numbers.uniform(0.0, _MAX_SECONDS)])
        ended, killed = run_and_kill(folder, f"run-{number}", kills, delay)
        outcome = verdict(ended, kills, killed)
        detail = {"seconds": delay, "killed": killed, "exit_code": ended.returncode}
        times = "each time" if kills == ALWAYS else f"{kills} times"
        yield Trial("server_kills", seed, f"killed {times}", outcome, detail=detail)


def run_and_kill(
    folder: Path, name: str, kills: int, delay: float
) -> tuple["subprocess.CompletedProcess[str]", int]:
    """The run, and how many servers were killed."""
    command = [
        str(Path(sys.executable).with_name("metta")), "train", "CartPole-v1", *RUN, "--output", str(folder),
        "--run", name,
    ]  # fmt: skip
    environment = {**os.environ, "METTA_CACHE_DIR": str(folder / "cache")}
    with (folder / f"{name}.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            killed = kill_servers(process, kills, delay)
            code = process.wait()
        finally:
            process.kill()
        log.seek(0)
        return subprocess.CompletedProcess(command, code, log.read()), killed


def kill_servers(process: "subprocess.Popen[bytes]", kills: int, delay: float) -> int:
    seen: set[int] = set()
    while process.poll() is None and len(seen) < kills:
        for server in servers_of(process.pid) - seen:
            time.sleep(delay)
            seen.add(server)
            os.kill(server, signal.SIGKILL)  # it is a child's number until its parent waits for it
        time.sleep(_LOOK_SECONDS)
    return len(seen)


def servers_of(pid: int) -> set[int]:
    try:
        children = psutil.Process(pid).children()
        return {
            child.pid
            for child in children
            if any("multiprocessing.forkserver" in word for word in child.cmdline())
        }
    except psutil.Error:  # one of them has just ended
        return set()


def verdict(ended: "subprocess.CompletedProcess[str]", kills: int, killed: int) -> str:
    if not killed:
        return "no server was killed"
    if "Traceback" in ended.stdout:
        return f"a traceback: {ended.stdout[-300:]}"
    if ended.returncode == 0:
        return OK
    if kills == ALWAYS and "the fork server of multiprocessing died" in ended.stdout:
        return OK
    return f"ended with {ended.returncode}: {ended.stdout[-300:]}"
