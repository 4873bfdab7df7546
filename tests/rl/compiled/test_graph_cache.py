"""Where compiled updates are kept, and the process that compiles them."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from faults.zygote import Zygote
from metta.errors import DriverError
from metta.file_locks import hold_lock
from metta.rl.compiled import cache as graph_cache
from metta.rl.compiled.cache import compile_graph, compiler_name
from metta.rl.compiled.trace import trace
from metta.rl.ppo_trainer import PPOTrainer

pytestmark = pytest.mark.skipif(compiler_name() is None, reason="needs a C++ compiler")

LONG = {"total_timesteps": 100_000_000, "num_envs": 2, "n_steps": 16, "hidden_size": 8}


def test_others_may_not_write_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "graphs"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path))
    function = trace(lambda x: (x * 2.0,), [torch.ones(3)])
    with pytest.raises(DriverError, match=r"others can write into it.*METTA_CACHE_DIR"):
        compile_graph(function, [torch.ones(3)], lambda _: None)


def test_the_oldest_packages_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "_KEPT_PACKAGES", 2)
    for number in range(4):
        path = tmp_path / f"{number}.pt2"
        path.write_bytes(b"x")
        path.with_suffix(".sha256").write_text("x")
        os.utime(path, (number, number))
    graph_cache._forget_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "2.pt2", "2.sha256", "3.pt2", "3.sha256",
    ]  # fmt: skip


@pytest.mark.parametrize("fault", ["a file in its place", "no home"])
def test_a_long_run_is_eager_when_nothing_can_be_kept(
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    if fault == "no home":

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        for name in ("METTA_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    else:
        (tmp_path / "graphs").touch()
        monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path))
    with PPOTrainer(None, "CartPole-v1", **LONG) as trainer:
        trainer.learn(trainer.collect_rollouts())
        assert trainer.plan.driver == "eager"
    assert "set METTA_CACHE_DIR to one of yours" in capsys.readouterr().err


def test_the_compiler_imports_nothing_from_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DriverError, match=r"the compiler failed.*Error"):
        graph_cache._run_worker(b"no graph", tmp_path / "made.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["torch.py"]


SLOW_COMPILER = """#!/bin/sh
case "$1" in -dump*) echo 1.2.3; exit 0;; esac
touch {started}
exec sleep 600
"""


def test_no_compiler_is_left_when_a_trainer_is_terminated(zygote: Zygote, tmp_path: Path) -> None:
    compiler, started = tmp_path / "slow-g++", tmp_path / "started"
    compiler.write_text(SLOW_COMPILER.format(started=started))
    compiler.chmod(0o700)
    trainer = zygote.start(
        "tests.rl.compiled.graph_children:compile_one",
        compiler=str(compiler), cache=str(tmp_path / "cache"),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120.0
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        below = psutil.Process(trainer.pid).children(recursive=True)
        assert len(below) >= 2, "the compiler was not started"
    finally:
        trainer.kill(signal.SIGTERM)
        trainer.wait(30.0)
    _, left = psutil.wait_procs(below, timeout=30.0)
    assert left == []


class Compiling:
    """A process with everything of the cache but the compiler, which takes until there is a file."""

    def __init__(self, zygote: Zygote, folder: Path, name: str) -> None:
        self.said, self.num_read = folder / name, 0
        self.child = zygote.start(
            "tests.rl.compiled.graph_children:compile_in_turn",
            said=str(self.said), cache=str(folder / "cache"), go=str(folder / "go"),
        )  # fmt: skip

    def next_line(self) -> str:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            lines = self.said.read_text().splitlines(keepends=True) if self.said.exists() else []
            if len(lines) > self.num_read and lines[self.num_read].endswith("\n"):
                self.num_read += 1
                return lines[self.num_read - 1]
            time.sleep(0.005)
        raise TimeoutError(f"{self.said} has {self.num_read} lines")

    def rest(self) -> str:
        assert self.child.wait() == 0
        return "".join(self.said.read_text().splitlines(keepends=True)[self.num_read :])


def test_the_second_waits_and_loads_when_two_processes_want_the_same_package(
    zygote: Zygote, tmp_path: Path
) -> None:
    first, second = (Compiling(zygote, tmp_path, name) for name in ("first", "second"))
    said = [process.next_line() for process in (first, second)]
    assert sorted(line.partition(" (")[0].strip() for line in said) == [
        "another process is compiling this update; waiting for it",
        "compiling the update",
    ]
    (tmp_path / "go").touch()
    assert [process.rest() for process in (first, second)] == ["b'code'\n", "b'code'\n"]
    assert {path.suffix for path in (tmp_path / "cache" / "graphs").iterdir()} == {
        ".pt2", ".sha256", ".lock",
    }  # fmt: skip


def test_the_second_compiles_when_the_one_it_waits_for_is_killed(
    zygote: Zygote, tmp_path: Path
) -> None:
    first = Compiling(zygote, tmp_path, "first")
    assert first.next_line().startswith("compiling the update")
    second = Compiling(zygote, tmp_path, "second")
    assert second.next_line().startswith("another process is compiling")
    first.child.kill()
    assert second.next_line().startswith("compiling the update")
    (tmp_path / "go").touch()
    assert second.rest() == "b'code'\n"


def test_locks_go_with_their_packages_when_nobody_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "_KEPT_PACKAGES", 1)
    for number, name in enumerate(["held", "old", "new"]):
        (tmp_path / f"{name}.pt2").touch()
        (tmp_path / f"{name}.lock").touch()
        os.utime(tmp_path / f"{name}.pt2", (number, number))
    (tmp_path / "failed.lock").touch()
    with (
        hold_lock(tmp_path / "held.lock"),
        hold_lock(tmp_path / "compiling.lock"),
    ):
        graph_cache._forget_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "compiling.lock", "held.lock", "held.pt2", "new.lock", "new.pt2",
    ]  # fmt: skip


def test_a_new_lock_is_taken_when_the_file_was_removed_while_it_was_waited_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.lock"
    with contextlib.ExitStack() as holder:
        holder.enter_context(hold_lock(path))

        def remove_and_release() -> None:
            path.unlink()
            holder.close()

        with (
            hold_lock(path, before_waiting=remove_and_release),
            hold_lock(path) as is_ours,
        ):
            assert not is_ours
        with hold_lock(path) as is_ours:
            assert is_ours


def test_graphs_are_compiled_when_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(graph_cache, "_run_worker", lambda _, made: made.write_bytes(b"code"))
    monkeypatch.setattr(graph_cache, "CompiledGraph", lambda package, _: package.read_bytes())
    graph = trace(lambda x: (x * 2.0,), [torch.ones(3)])
    assert compile_graph(graph, [torch.ones(3)], lambda _: None) == b"code"
    assert {path.suffix for path in (tmp_path / "graphs").iterdir()} == {".pt2", ".sha256"}


def test_a_graph_is_compiled_again_when_its_digest_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METTA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graph_cache, "_run_worker", lambda _, made: made.write_bytes(b"code"))
    monkeypatch.setattr(graph_cache, "CompiledGraph", lambda package, _: package)
    graph, said = trace(lambda x: (x * 2.0,), [torch.ones(3)]), list[str]()
    package = compile_graph(graph, [torch.ones(3)], said.append)
    package.with_suffix(".sha256").write_bytes(b"\xff\xfe\x80")
    assert compile_graph(graph, [torch.ones(3)], said.append) == package
    assert len(said) == 2
