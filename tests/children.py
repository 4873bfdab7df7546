"""What forked processes of tests do: commands of metta, without the seconds that imports take.

Tests get the process that forks them as the fixture `zygote`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from faults.zygote import Child, Zygote
from metta.cli.main import main
from metta.rl.clean_trainer import Trainer
from metta.testing import certification
from metta.train.train_config import TrainingConfig

PRELOADED = [
    "tests.children:warm_up", "faults.training", "matplotlib.pyplot", "torch._dynamo", "wandb",
    "sqlalchemy",
]  # fmt: skip
TINY = ["num_envs=2", "horizon=16", "hidden_size=8", "update_epochs=1", "num_minibatches=1",
        "monitor_seconds=0", "verbose=false", "eval_episodes=0", "final_replay=false"]  # fmt: skip
_SECONDS = 120.0
NO_MOUNT = 77
"""Exit code of a child that may mount nothing."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def warm_up() -> None:
    """Train once, so that everything is imported that is imported late."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run behind a `&`
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "CartPole-v1", *TINY, "total_timesteps=64", "--output", folder]
        assert main(words) == 0


def start_metta(zygote: Zygote, words: Sequence[str], folder: Path) -> Child:
    """Start ``metta WORDS``; what it says goes to ``out.txt`` and ``err.txt`` in a folder."""
    return zygote.start("tests.children:metta", words=list(words), folder=str(folder))


def ended(child: Child, folder: Path) -> Ended:
    """Wait for a command."""
    code = child.wait(_SECONDS)
    return Ended(code, *((folder / name).read_text() for name in ("out.txt", "err.txt")))


def metta_on_a_small_disk(words: list[str], folder: str, place: str, size: str) -> None:
    """The command, in this process, which alone sees a disk of this size in a place."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        sys.exit(NO_MOUNT)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
    if subprocess.run(mount, check=False).returncode:
        sys.exit(NO_MOUNT)
    metta(words, folder)


def metta_with_modules(words: list[str], folder: str) -> None:
    """The command, in this process, which finds the modules of a folder."""
    sys.path.insert(0, folder)
    metta(words, folder)


def metta_in_folder(words: list[str], folder: str) -> None:
    """The command, in this process, whose current folder is another one."""
    os.chdir(folder)
    metta(words, folder)


def metta(words: list[str], folder: str) -> None:
    """The command, in this process."""
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    warnings.resetwarnings()
    sys.exit(main(words))


def certified(folder: str, words: list[str]) -> None:
    """A process of a certificate."""
    certification._train(Path(folder), *map(int, words))


def hold_a_run(run: str, ready: str, over: str) -> None:
    """A trainer that is at work until there is a file."""
    trainer = Trainer(TrainingConfig(), run_dir=run)
    trainer.setup()
    Path(ready).touch()
    while not Path(over).exists():
        time.sleep(0.005)
    trainer.cleanup()
