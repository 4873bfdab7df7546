"""Is a user's own set-up exact? Kill it, resume it, and compare every component with an undisturbed run."""

import contextlib
import dataclasses
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from metta.errors import MettaError
from metta.private_folders import temporary_folder
from metta.processes import python_command
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.rl.training_state import TrainerState
from metta.store.checkpoints.files import read_checkpoint
from metta.store.run_directory import RunDirectory
from metta.testing.digests import (
    NAMES_FILES,
    DigestHook,
    compare_digests,
    first_difference,
    read_digests,
)
from metta.train.train_config import TrainingConfig

__all__ = ["Certificate", "certify"]

_CONFIG, _DIGESTS, _LOG = "certified.yaml", "digests.jsonl", "output.txt"
_SUPPORT = "support.txt"
_KILLED = -9
_HELD_SECONDS = 60.0


@dataclass
class Certificate:
    """The result of `certify`."""

    support: str
    """How environments are restored, and what a resumed run is like."""
    epochs: int
    kills: list[int]
    """For each kill, how many epochs were done."""
    differences: dict[str, str] = field(default_factory=dict)
    """Component -> where it first differs from the undisturbed run."""
    components: list[str] = field(default_factory=list)
    noise: str | None = None
    """Where two undisturbed runs differ from each other; then nothing can be exact."""

    @property
    def is_exact(self) -> bool:
        """Whether the killed run equals the undisturbed one, to the bit."""
        return not self.differences and self.noise is None


def certify(
    config: TrainingConfig, *, epochs: int = 6, kills: int = 3, seed: int = 0
) -> Certificate:
    """Train a shortened run three times, in separate processes, and kill the third `kills` times.

    The first two must be equal, or the set-up is not reproducible at all. Settings are the given ones,
    except that a run has `epochs` epochs, is saved after each of them, and is neither evaluated nor
    logged to W&B.
    """
    with temporary_folder("certify") as folder:
        short = _shortened(config, epochs)
        whole, again, killed = (folder / part for part in ("whole", "again", "killed"))
        for path in (whole, again, killed):
            path.mkdir()
            short.to_yaml(path / _CONFIG)
        undisturbed = {run: _start(run) for run in (whole, again)}  # at the same time
        for process in undisturbed.values():
            process.wait()
        for run, process in undisturbed.items():
            _finish(run, process)
        reached = _train_and_kill(killed, kills, epochs, random.Random(seed))
        certificate = Certificate((whole / _SUPPORT).read_text(), epochs, reached)
        noise = _compare(whole, again)
        if noise:
            certificate.noise = next(f"{name}: {place}" for name, place in noise.items())
        certificate.differences = _compare(whole, killed)
        names = {name for file in _digest_files(whole) for name in read_digests(file)[1][0]}
        certificate.components = sorted(names - {NAMES_FILES})
        return certificate


def _shortened(config: TrainingConfig, epochs: int) -> TrainingConfig:
    trainer = config.trainer
    batch = trainer.rollout.num_envs * trainer.rollout.horizon
    trainer = dataclasses.replace(
        trainer,
        total_timesteps=epochs * batch,
        verbose=False,
        checkpoint=dataclasses.replace(trainer.checkpoint, checkpoint_interval=1, keep_every=1),
        evaluation=dataclasses.replace(trainer.evaluation, eval_episodes=0),
        logging=dataclasses.replace(
            trainer.logging, wandb=dataclasses.replace(trainer.logging.wandb, mode="off")
        ),
    )
    return dataclasses.replace(config, trainer=trainer)


def _start(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    command = python_command(__name__, str(folder), *words)
    environment = dict(os.environ)
    ranks = TrainingConfig.from_yaml(folder / _CONFIG).trainer.system.num_processes
    if ranks > 1:
        agent = ["--standalone", "--nproc-per-node", str(ranks), "--no-python", "--"]
        command = python_command("metta.ranks_on_loopback", *agent, *command)
        environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns at length otherwise
    with (folder / _LOG).open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _kill(process: "subprocess.Popen[bytes]") -> int:
    """Kill a run with all its processes; returns how it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(below)
    return process.wait()


def _finish(folder: Path, process: "subprocess.Popen[bytes]") -> None:
    code = process.wait()
    if code != 0:
        last = (folder / _LOG).read_text(errors="replace").strip().splitlines()
        raise MettaError(
            f"the set-up does not train: its process ended with code {code}: "
            f"{last[-1] if last else 'it printed nothing'}"
        )


def _train_and_kill(
    folder: Path, kills: int, epochs: int, random_numbers: random.Random
) -> list[int]:
    """Kill later each time, at a random moment of the next epoch; returns epochs reached."""
    reached: list[int] = []
    for number in range(kills):
        target = 1 + number * max(epochs - 1, 1) // max(kills, 1)
        process = _start(folder, str(target))
        saved = RunDirectory(folder).checkpoint_dir / f"epoch_{target:06d}"
        while process.poll() is None and not saved.exists():
            time.sleep(0.005)
        time.sleep(random_numbers.uniform(0, 0.05))
        if _kill(process) == _KILLED:
            reached.append(_epochs_done(folder))
    _finish(folder, _start(folder))
    return reached


def _epochs_done(folder: Path) -> int:
    path = folder / _DIGESTS
    return max(read_digests(path), default=0) if path.exists() else 0


def _digest_files(folder: Path) -> list[Path]:
    """Of all ranks, the first one's first."""
    return sorted(folder.glob(f"*{_DIGESTS}"), key=lambda path: len(path.name))


def _compare(whole: Path, other: Path) -> dict[str, str]:
    """Component -> where it differs first, on any rank."""
    differences: dict[str, str] = {}
    for file in _digest_files(whole):
        expected, found = read_digests(file), read_digests(other / file.name)
        for epoch in sorted(found):
            difference = compare_digests(expected, {epoch: found[epoch]})
            for name in difference[1] if difference is not None else ():
                if name not in differences:
                    differences[name] = f"epoch {epoch}{_place(whole, other, epoch, name)}"
    return differences


def _place(whole: Path, other: Path, epoch: int, name: str) -> str:
    expected, found = (
        read_checkpoint(RunDirectory(run).checkpoint_dir / f"epoch_{epoch:06d}").snapshot
        for run in (whole, other)
    )
    place = first_difference(expected.get(name, {}), found.get(name, {}))
    return "" if place is None else f": {place.removeprefix('/state')}"


class _HeldBack(TrainerHook):
    """Lets no epoch end after the given one, so that the kill never comes too late."""

    def __init__(self, last_epoch: int) -> None:
        self._last_epoch = last_epoch

    def on_update_end(self, trainer_state: TrainerState) -> None:
        if trainer_state.epoch >= self._last_epoch:
            time.sleep(_HELD_SECONDS)  # continues if the killing process is gone


def _train(folder: Path, last_epoch: int | None = None) -> None:
    config = TrainingConfig.from_yaml(folder / _CONFIG)
    with Trainer(config, run_dir=folder) as trainer:
        parts, rank = trainer.components, trainer.ranks.rank
        assert parts is not None
        if trainer.session is not None:
            support = trainer.session.restore_support
            lines = [] if support is None else [support.describe()]
            lines += [] if parts.layout.is_plain else [f"computed as: {parts.layout.describe()}"]
            (folder / _SUPPORT).write_text("\n".join(lines))
        digests = DigestHook(folder / (f"{rank}-{_DIGESTS}" if rank else _DIGESTS))
        digests.ranks = "all"  # each in a file of its own
        trainer.add_hook(digests)
        if last_epoch is not None:
            trainer.add_hook(_HeldBack(last_epoch))
        trainer.train()


if __name__ == "__main__":
    _train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
