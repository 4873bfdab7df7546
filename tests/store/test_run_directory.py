"""The layout of a run, and the lock that keeps a second trainer out."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from metta.errors import ConfigError, RunLockedError, UnsafeFileError
from metta.store.run_directory import RunDirectory

HOLD = """
import sys, time
from metta.store.run_directory import RunDirectory
RunDirectory(sys.argv[1]).acquire()
print("locked", flush=True)
time.sleep(60)
"""
WITH_CHILD = HOLD.replace(
    "print(",
    "import subprocess\nchild = subprocess.Popen(['sleep', '60'], close_fds=False)\n"
    "print(child.pid, flush=True)\nprint(",
)


def start(code: str, folder: Path, lines: int = 1) -> tuple[subprocess.Popen[str], list[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [process.stdout.readline().strip() for _ in range(lines)]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_every_place_lies_in_the_folder_when_it_is_asked_for(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "first")
    expected = {
        "config_file": "config.yaml",
        "provenance_file": "provenance.json",
        "events_file": "events.jsonl",
        "metrics_file": "metrics.csv",
        "curve_file": "learning_curve.png",
        "checkpoint_dir": "checkpoints",
        "replay_dir": "replays",
        "stats_dir": "stats",
        "tensorboard_dir": "tensorboard",
        "lock_file": "run.lock",
    }
    assert {name: getattr(run, name).name for name in expected} == expected
    assert all(getattr(run, name).parent == run.path for name in expected)
    assert run.name == "first"
    assert not run.path.exists()


def test_a_second_process_is_named_when_it_holds_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    process, _ = start(HOLD, run.path)
    try:
        about = json.loads(run.lock_file.read_text())
        assert about["pid"] == process.pid
        with pytest.raises(RunLockedError) as raised:
            run.acquire()
        for part in (str(process.pid), socket.gethostname(), about["started"], str(run.path)):
            assert part in str(raised.value)
    finally:
        end(process)


def test_the_run_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    process, _ = start(HOLD, tmp_path)
    end(process)
    with RunDirectory(tmp_path).lock() as run:
        assert json.loads(run.lock_file.read_text())["pid"] == os.getpid()


def test_the_run_is_free_when_only_a_child_of_its_killed_holder_lives(tmp_path: Path) -> None:
    process, lines = start(WITH_CHILD, tmp_path, lines=2)
    try:
        end(process)
        os.kill(int(lines[0]), 0)  # the child is still there
        with RunDirectory(tmp_path).lock():
            pass
    finally:
        os.kill(int(lines[0]), signal.SIGKILL)


def test_a_second_trainer_is_refused_when_it_lives_in_the_same_process(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with first.lock():
        for other in (second, first):
            with pytest.raises(RunLockedError, match=f"process {os.getpid()} on"):
                other.acquire()
    second.acquire()
    second.release()
    second.release()


def test_no_second_trainer_comes_in_when_one_was_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock():
        for _ in range(3):
            with pytest.raises(RunLockedError):
                RunDirectory(tmp_path).acquire()


def test_the_refusal_is_clear_when_the_holder_has_not_said_who_it_is(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as run:
        for content in ("", "{", "[]", "{}", "[" * 5000, '{"pid": 1, "pid": 2}'):
            run.lock_file.write_text(content)
            with pytest.raises(RunLockedError, match="only just begun"):
                RunDirectory(tmp_path).acquire()


def test_the_lock_is_released_when_the_work_fails(tmp_path: Path) -> None:
    def work() -> None:
        with RunDirectory(tmp_path).lock():
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    RunDirectory(tmp_path).acquire()


def test_a_config_error_names_the_folder_when_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="cannot be written") as raised:
            RunDirectory(path).acquire()
        assert str(path) in str(raised.value)


def test_a_config_error_comes_first_when_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _: str) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        RunDirectory(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


def test_only_the_lock_file_is_left_when_a_run_was_locked(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock():
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_only_its_owner_may_look_in_when_a_run_is_made(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    (tmp_path / "old").chmod(0o755)
    for name, mode in (("new", 0o700), ("old", 0o755)):
        with RunDirectory(tmp_path / name).lock() as run:
            assert run.path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "name", ["run.lock", "config.yaml", "metrics.csv", "events.jsonl", "checkpoints"]
)
def test_nothing_elsewhere_is_touched_when_a_run_holds_links(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(UnsafeFileError, match="leads out of"):
        RunDirectory(folder).acquire()
    assert victim.read_text() == "precious"
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_run_is_taken_when_it_is_itself_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with RunDirectory(tmp_path / "link").lock():
        assert (tmp_path / "real" / "run.lock").exists()


@pytest.mark.parametrize("name", ["provenance.json", "checkpoints"])
def test_a_run_is_refused_when_a_file_and_a_folder_changed_places(
    tmp_path: Path, name: str
) -> None:
    run = RunDirectory(tmp_path)
    if name == "checkpoints":
        (tmp_path / name).write_text("x")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(UnsafeFileError, match=f"{name}' is not a (file|folder), which metta"):
        run.acquire()


def test_a_run_is_refused_when_a_link_below_its_folders_leads_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "wandb").mkdir(parents=True)
    (tmp_path / "run" / "wandb" / "cache").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeFileError, match="leads out of"):
        RunDirectory(tmp_path / "run").acquire()


def test_a_folder_of_the_run_is_told_when_it_is_named_and_refused_when_it_is_outside(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    assert run.place("checkpoint_dir") == run.path / "checkpoints"
    run.about_file.write_text('{"checkpoint_dir": "mine"}')
    assert run.place("checkpoint_dir") == run.path / "mine"
    for outside in (str(tmp_path / "x"), "../x", "mine/../../x"):
        run.about_file.write_text(json.dumps({"checkpoint_dir": outside}))
        with pytest.raises(ConfigError, match=r"outside of the run; .* only if you name it: GIVE "):
            run.place("checkpoint_dir", lambda folder: f"GIVE {folder}")


def test_a_run_is_taken_when_a_link_of_the_user_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("checkpoints/epoch_000001")
    with RunDirectory(tmp_path).lock():
        assert (tmp_path / "latest").is_symlink()
