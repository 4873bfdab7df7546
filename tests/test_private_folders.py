"""Private folders: who may write above them, and what is left of processes that were killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.second_user import USER, can_change_user
from metta.errors import UnsafeFileError
from metta.private_folders import (
    ScratchFolder,
    private_folder,
    sweep_scratch,
    temporary_folder,
)


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that others can get to, with the cache two levels below it."""
    for place in (tmp_path, *tmp_path.parents):  # pytest keeps its folders to itself
        if place.stat().st_uid == os.getuid() and place.stat().st_mode & 0o77 == 0:
            place.chmod(0o711)
    top = tmp_path / "top"
    top.mkdir(mode=0o755)
    monkeypatch.setenv("METTA_CACHE_DIR", str(top / "between" / "cache"))
    yield top
    top.chmod(0o700)


def test_missing_folders_are_made_for_their_owner_alone(top: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = private_folder("graphs")
    finally:
        os.umask(before)
    places = [folder, folder.parent, folder.parent.parent]
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700] * 3


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_above_that_others_can_write_to_is_refused(
    top: Path, mode: int, depth: int
) -> None:
    folder = private_folder("graphs")
    for place in (folder.parent, folder.parent.parent):
        place.chmod(0o755)
    place = [top, folder.parent.parent, folder.parent][depth]
    place.chmod(mode)
    with pytest.raises(UnsafeFileError, match=rf"{place}.*others can write.*METTA_CACHE_DIR"):
        private_folder("graphs")


def test_a_sticky_folder_and_one_below_a_hidden_folder_are_accepted(top: Path) -> None:
    top.chmod(0o1777)
    folder = private_folder("graphs")
    folder.parent.chmod(0o777)
    folder.parent.parent.chmod(0o700)
    assert private_folder("graphs") == folder


@pytest.mark.skipif(not can_change_user(), reason="only root can give files to a second user")
@pytest.mark.parametrize("kind", ["folder", "hidden folder", "link", "target of a link"])
def test_what_belongs_to_another_user_is_refused(top: Path, kind: str) -> None:
    place, elsewhere = top / "between", top / "elsewhere"
    if "link" in kind:
        elsewhere.mkdir(mode=0o755)
        place.symlink_to(elsewhere)
        os.chown(place if kind == "link" else elsewhere, USER, USER, follow_symlinks=False)
    else:
        place.mkdir(mode=0o700 if kind == "hidden folder" else 0o755)
        os.chown(place, USER, USER)
    with pytest.raises(UnsafeFileError, match=rf"belongs to user {USER}.*METTA_CACHE_DIR"):
        private_folder("graphs")


def test_a_scratch_folder_goes_with_its_content_and_leaves_no_lock(top: Path) -> None:
    with ScratchFolder("test") as scratch:
        (scratch.path / "file").write_text("x")
        sweep_scratch()  # it is in use
        assert (scratch.path / "file").exists()
    assert list(private_folder("scratch").iterdir()) == []


def test_a_forked_child_leaves_the_scratch_folder_of_its_parent(top: Path) -> None:
    with ScratchFolder("test") as scratch:
        pid = os.fork()
        if pid == 0:
            scratch.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert scratch.path.is_dir()


HOLD = """
from metta.private_folders import ScratchFolder
scratch = ScratchFolder("held")
(scratch.path / "weights").write_text("x")
(scratch.path / "link").symlink_to(__import__("sys").argv[1])
print(scratch.path, flush=True)
input()
"""


def test_what_a_killed_process_left_is_removed_and_links_are_not_followed(
    top: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(kept)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        sweep_scratch()
        assert (held / "weights").exists()
        process.kill()
    assert (held / "weights").exists()
    (held.parent / "not-ours").mkdir()
    sweep_scratch()
    assert [path.name for path in held.parent.iterdir()] == ["not-ours"]
    assert (kept / "file").exists()


def test_the_systems_folder_is_used_where_there_is_no_private_one(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top.chmod(0o777)
    with temporary_folder("test") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not folder.is_relative_to(top)
    assert not folder.exists()


@pytest.fixture
def short() -> Iterator[Path]:
    """A socket in it has a path that the system takes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_the_next_start_removes_what_a_killed_run_left(short: Path, tmp_path: Path) -> None:
    """Through the command line: workers and background evaluation, kill -9, then a run that has neither."""
    cache, temporary = short / "cache", short / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "METTA_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    program = str(Path(sys.executable).with_name("metta"))
    small = [
        "train",
        "CartPole-v1",
        "--output",
        str(tmp_path),
        "num_envs=2",
        "n_steps=16",
        "hidden_size=8",
    ]
    working = ["num_workers=2", "evaluate_interval=1", "evaluation.where=process"]
    process = subprocess.Popen(
        [program, *small, *working, "total_timesteps=100000000"],
        env=environment, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        while not list(cache.glob("scratch/server-*")):
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert {path.name.split("-")[0] for path in cache.glob("scratch/*.lock")} == {"server"}
    subprocess.run(
        [program, *small, "total_timesteps=32", "--eval-episodes", "0"],
        env=environment, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    assert list(cache.glob("scratch/*")) == []
    for path in temporary.glob("torchinductor_*"):  # torch makes it, empty, in every program
        shutil.rmtree(path)
    assert list(temporary.iterdir()) == []
