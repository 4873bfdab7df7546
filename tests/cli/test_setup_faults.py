"""A disk that fails while `metta train` sets a run up: a typed error with the path and what to do."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from tests.children import NO_MOUNT, ended

SMALL = [
    "cartpole", "total_timesteps=64", "num_envs=2", "horizon=8", "num_minibatches=1", "update_epochs=1",
    "hidden_size=8", "eval_episodes=0", "final_replay=false",
    "logging.tensorboard=true", "logging.csv=true",
]  # fmt: skip


@pytest.mark.parametrize("size", ["4k", "12k"])  # for the folder alone, and for some of its files
def test_train_says_that_the_disk_is_full_while_it_sets_a_run_up(
    zygote: Zygote, tmp_path: Path, size: str
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    words = ["train", *SMALL, "--output", str(place), "--run", "run"]
    child = zygote.start(
        "tests.children:metta_on_a_small_disk",
        words=words, folder=str(tmp_path), place=str(place), size=size,
    )  # fmt: skip
    if child.wait() == NO_MOUNT:
        pytest.skip("a small disk cannot be mounted here")
    code, _, said = ended(child, tmp_path)
    assert code == 2, said
    assert "metta: ConfigError: " in said
    assert "No space left on device" in said
    assert "the disk is full: free some space" in said
    assert str(place) in said
    assert "Traceback" not in said


def train(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["train", *SMALL, "--output", str(folder), "--run", "run"])
    return code, capsys.readouterr().err


def test_train_says_that_a_file_system_has_no_locks(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=flock:error=ENOLCK"]
    words = ["train", *SMALL, "--output", str(tmp_path), "--run", "run"]
    done = subprocess.run(
        [*inject, sys.executable, "-m", "metta.cli.main", *words],
        env={**os.environ, "HOME": "/tmp"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    code, said = done.returncode, done.stderr
    assert code == 2, said
    assert "metta: ConfigError: the file system of " in said
    assert "has no locks (flock: No locks available)" in said
    assert "permissions" not in said


@pytest.mark.filterwarnings("default::metta.errors.MettaWarning")  # the command prints them
@pytest.mark.parametrize(
    ("call", "error", "advice"),
    [
        ("fsync", "EIO", "the disk does not answer as it should: choose a place on another disk"),
        ("rename", "EACCES", "you may not do that there: change its permissions"),
        ("rename", "ENOENT", "it is missing, or was removed meanwhile"),
        ("rename", "ENOTDIR", "move away what is in that place"),
        ("rename", "ENFILE", "too many files are open: raise the limit (ulimit -n)"),
        ("rename", "EPROTO", "fix that, and start the run again"),
    ],
)
def test_train_says_what_failed_while_it_sets_a_run_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    error: str,
    advice: str,
) -> None:
    number = getattr(errno, error)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    # config.yaml and its kin are the first files that are written durably and renamed
    monkeypatch.setattr(os, call, fail)
    code, said = train(tmp_path, capsys)
    assert code == 2, said
    begin = f"metta: ConfigError: the run {str(tmp_path / 'run')!r} cannot be set up: "
    assert f"{begin}[Errno {number}] {os.strerror(number)}" in said
    assert advice in said
    assert "cannot be written" not in said


def test_train_does_not_blame_the_folder_when_a_service_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("metta.rl.session.open_wandb_run", refuse)
    assert main(["train", *SMALL, "--output", str(tmp_path), "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert f"cannot be set up: [Errno {errno.ECONNREFUSED}] Connection refused; fix that" in said
    assert "permissions" not in said
