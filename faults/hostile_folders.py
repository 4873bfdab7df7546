"""Hostile folders of runs, and every command that reads one: none hangs, swells, breaks or reaches out.

A trial plants one file, link, pipe, device, name or text in a copy of a sound run, which belongs to another
user where this process may give files away, and lets commands read it, each in a forked child; some of them
also as a real ``metta``, or as another user. It is wrong where a command hangs, takes more than 500 MB,
ends in a traceback, prints what a terminal would obey or what a link leads to outside of the run, or
changes anything there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from faults.commands import HUNG, PATIENCE_SECONDS, Ended, load_commands, run_command
from faults.planted_folders import Plant, plants
from faults.trial import OK, Trial
from metta.cli.main import main

_SMALL = [
    "num_envs=2",
    "n_steps=8",
    "n_epochs=1",
    "num_minibatches=1",
    "hidden_size=8",
    "eval_episodes=1",
]
_NOBODY = 65534
SECRET = "what-only-the-victim-knows"
_EVERY_REAL, _EVERY_OTHER_USER, _EVERY_EXPORT = 10, 8, 12
"""Each so many-th plant is also read by a real ``metta``, by another user, and by `metta export`."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` plants, evenly over all there are, or all of them."""
    found = plants()
    chosen = (
        found if count >= len(found) else [found[i * len(found) // count] for i in range(count)]
    )
    yield from plant_all(chosen, seed, folder)


def plant_all(chosen: list[Plant], seed: int, folder: Path) -> Iterator[Trial]:
    torch.set_num_threads(1)
    load_commands()
    world = World(folder)
    for number, plant in enumerate(chosen):
        run = world.fresh_run()
        plant.put(run)
        world.give_away(run)
        before = world.fingerprint()
        problems, num_commands = [], 0
        for name, ended in world.commands(number):
            num_commands += 1
            problem = ended.problem() or ("printed the secret" if SECRET in ended.said else None)
            if problem is None and world.fingerprint() != before:
                problem = "changed a file beside the folder of runs"
                world.make_outside()
                before = world.fingerprint()
            if problem is not None:
                problems.append(f"{name}: {problem}")
        outcome = "; ".join(problems) or OK
        detail = {"commands": num_commands}
        yield Trial("hostile_folders", seed, plant.name, outcome, detail=detail)


class World:
    """A folder of runs that are planted in, and beside it what must stay as it is."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder, self.runs, self.outside = folder, folder / "runs", folder / "outside"
        self.sound, self.number = folder / "sound", 0
        words = ["train", "cartpole", *_SMALL, "total_timesteps=48", "evaluate_interval=1"]
        words += ["replay_interval=2", "--output", str(folder), "--run"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main([*words, "sound"]) == 0
            assert main([*words, "victim"]) == 0
        self.runs.mkdir()
        self.make_outside()

    def make_outside(self) -> None:
        """The victim's run, and a secret."""
        shutil.rmtree(self.outside, ignore_errors=True)
        shutil.copytree(self.folder / "victim", self.outside / "victim")
        (self.outside / "secret.txt").write_text(f"{SECRET}\n" * 1000)

    def fresh_run(self) -> Path:
        """A new copy of the sound run, alone in the folder of runs."""
        shutil.rmtree(self.runs)
        self.runs.mkdir()
        run = self.runs / "run"
        shutil.copytree(self.sound, run)
        return run

    def give_away(self, run: Path) -> None:
        """To another user, as one finds it on a shared machine."""
        if os.geteuid() == 0:
            for path in [run, *run.rglob("*")]:
                os.lchown(path, _NOBODY, _NOBODY)

    def fingerprint(self) -> str:
        """Of everything outside, with times of change."""
        digest = hashlib.sha256()
        for path in sorted(self.outside.rglob("*")):
            about = path.lstat()
            digest.update(
                repr((str(path), about.st_mode, about.st_size, about.st_mtime_ns)).encode()
            )
        return digest.hexdigest()

    def commands(self, number: int) -> Iterator[tuple[str, Ended]]:
        """Commands that read the run: three always, three of the others by turns."""
        run, output, scratch = (
            str(self.runs / "run"),
            ["--runs", str(self.runs)],
            self.folder / "scratch",
        )
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o777)
        scratch.chmod(0o777)
        reading = [
            ["runs", "show", "run", *output],
            ["inspect", "run", *output],
            ["policies", *output],
            ["runs", *output],
            ["replay", run, "--list"],
            ["config", f"{run}/config.yaml"],
            ["stats", "ingest", "--database", f"{scratch}/stats.db", str(self.runs)],
        ]
        slow = [
            ["eval", "run:latest", "--episodes", "1", *output],
            ["compare", "run", str(self.outside / "victim"), *output],
            ["finetune", run, "cartpole", *_SMALL, "total_timesteps=16", "--run", "fine", *output],
            ["profile", run, "--epochs", "1", "--warmup", "1", "--out", f"{scratch}/profile"],
            ["replay", run, "--out", f"{scratch}/replay.txt"],
        ]
        others = [*reading[2:], *slow]
        by_turns = [others[(3 * number + place) % len(others)] for place in range(3)]
        for words in [*reading[:2], *by_turns]:
            yield words[0], run_command(words, cwd=scratch)
        if number % _EVERY_EXPORT == 0:
            words = ["export", "run:best", "--format", "torch", "-o", f"{scratch}/policy.pt2"]
            yield "export", run_command([*words, *output], cwd=scratch)
        if number % _EVERY_OTHER_USER == 0 and os.geteuid() == 0:
            for words in reading[:5]:
                yield f"{words[0]} as another user", run_command(words, uid=_NOBODY, cwd=scratch)
        if number % _EVERY_REAL == 0:
            for words in reading[1:3]:
                yield f"metta {words[0]}", _real(words, scratch)
        yield (
            "resume",
            run_command(["resume", run, "total_timesteps=64", "keep_last=1"], cwd=scratch),
        )


def _real(words: list[str], folder: Path) -> Ended:
    command = [sys.executable, "-P", "-m", "metta.cli.main", *words]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ended(HUNG, "")
    return Ended(ended.returncode, (ended.stdout + ended.stderr).decode(errors="replace"))
