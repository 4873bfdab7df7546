"""Reads through the commands while a run saves and removes a checkpoint in every epoch: all find a policy.

The run keeps one checkpoint only (`keep_last=1`, `checkpoint_interval=1`), so that what a reader has listed
is mostly gone when it reads. A trial is one command; a run that did not remove anything meanwhile proves
nothing, and counts as wrong.
"""

import json
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from faults.commands import Ended, load_commands, run_command
from faults.trial import OK, Trial
from metta.cli.main import main
from metta.store.checkpoints.files import checkpoint_folders, epoch_of

_SMALL = ["num_envs=2", "n_steps=8", "n_epochs=1", "num_minibatches=1", "hidden_size=8"]
_EVER = [
    "driver=eager",
    "threads=1",
    "keep_last=1",
    "checkpoint_interval=1",
    "total_timesteps=1_000_000_000",
]
_START_SECONDS = 120.0


def reads(runs: Path) -> dict[str, list[str]]:
    """What is read, and how."""
    run, output = str(runs / "run"), ["--runs", str(runs)]
    return {
        "eval RUN:latest": ["eval", "run:latest", "--episodes", "1", *output],
        "inspect RUN": ["inspect", "run", "--json", *output],
        "policies RUN": ["policies", "run", "--json", *output],
        "eval FOLDER": ["eval", run, "--episodes", "1", *output],
        "eval RUN:best": ["eval", "run:best", "--episodes", "1", *output],
        "inspect RUN:latest --verify": ["inspect", "run:latest", "--verify", "--json", *output],
    }


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` reads, in turn, beside one run."""
    torch.set_num_threads(1)
    load_commands()
    runs = folder / "runs"
    trainer = start_training(runs, seed)
    try:
        wait_for_policy(runs)
        ways = list(reads(runs).items())
        for number in range(count):
            name, words = ways[number % len(ways)]
            before = newest(runs)
            ended = run_command(words)
            passed = newest(runs) - before
            detail = {"epochs": passed, "code": ended.code}
            yield Trial("racing_readers", seed, name, verdict(name, ended), detail=detail)
        outcome = OK if newest(runs) > count else "the run saved and removed too little"
        yield Trial("racing_readers", seed, "the run meanwhile", outcome)
    finally:
        os.kill(trainer, signal.SIGKILL)
        os.waitpid(trainer, 0)


def start_training(runs: Path, seed: int) -> int:
    """A run in a separate process, with a score in every epoch, so that the best changes too."""
    scored = ["evaluate_interval=1", "eval_episodes=1"]
    words = ["train", "cartpole", *_SMALL, *_EVER, *scored, f"seed={seed}", "verbose=false"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os._exit(main([*words, "--run", "run", "--output", str(runs)]))
    return child


def wait_for_policy(runs: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while newest(runs) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the run saved no checkpoint")
        time.sleep(0.02)


def newest(runs: Path) -> int:
    folders = checkpoint_folders(runs / "run" / "checkpoints")
    return epoch_of(folders[-1]) if folders else 0


def verdict(name: str, ended: Ended) -> str:
    problem = ended.problem()
    if problem or ended.code:
        return problem or f"ended with {ended.code}: {ended.said[-300:]}"
    if name.startswith("policies") and not [json.loads(line) for line in ended.said.splitlines()]:
        return "no policy was listed"
    return OK
