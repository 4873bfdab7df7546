"""Processes that metta starts find the modules that their parent finds, and no others."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metta.processes import find_program, python_command

OWN = "from metta.envs.toy import CountdownEnv\nclass Own(CountdownEnv):\n    pass\n"
SCRIPT = """
import json, os, subprocess, sys
from pathlib import Path
from own_envs import Own
from metta.envs import make_vec_env

class Asking(Own):
    def reset(self, **options):
        tool = Path(__file__).with_name("tool.py")
        subprocess.run([sys.executable, str(tool)], check=True)
        found = {"pid": os.getpid(), "path": sys.path, "variable": os.environ.get("PYTHONSAFEPATH")}
        Path(sys.argv[0]).with_name("found.json").write_text(json.dumps(found))
        return super().reset(**options)

env = make_vec_env(Asking, num_envs=1, num_workers=1)
env.reset([0], env.obs_spec.zeros(1))
env.close()
print(json.dumps([sys.path, os.getpid()]))
"""


def test_workers_and_the_programs_of_environments_find_what_the_script_finds(
    tmp_path: Path,
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "own_envs.py").write_text(OWN)
    (project / "helper.py").write_text("")
    (project / "tool.py").write_text("import helper\n")
    (project / "train.py").write_text(SCRIPT)
    (elsewhere / "selectors.py").write_text("raise SystemExit('the current folder was searched')")
    ended = subprocess.run(
        [sys.executable, str(project / "train.py")],
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads((project / "found.json").read_text())
    path, pid = json.loads(ended.stdout)
    assert found.pop("pid") != pid
    assert found == {"path": path, "variable": None}


def test_a_module_runs_as_it_does_here_and_ignores_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "runpy.py").write_text("raise SystemExit('planted')")
    (tmp_path / "metta").mkdir()
    (tmp_path / "metta" / "__init__.py").write_text("raise SystemExit('planted')")
    command = python_command("metta.cli.main", "presets")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "grid" in ended.stdout


STEPPING = """
import socket, sys
from pathlib import Path
from metta.envs import make_vec_env

real = socket.socket.bind
without_sockets = sys.argv[1:]

def bind(made, address):
    if isinstance(address, str) and address.startswith(tuple(without_sockets)):
        raise PermissionError(1, "Operation not permitted")  # as vfat says
    real(made, address)

socket.socket.bind = bind
env = make_vec_env("CartPole-v1", num_envs=2, num_workers=1)
print(len(env.reset([0, 1], env.obs_spec.zeros(2)).rewards))
env.close()
"""


def step_with_workers(
    cache: Path, temporary: Path, *without_sockets: Path
) -> subprocess.CompletedProcess[str]:
    """A script with a worker, where nobody can make a socket below some folders."""
    temporary.mkdir(parents=True, exist_ok=True)
    variables = {"METTA_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    ended = subprocess.run(
        [sys.executable, "-c", STEPPING, *map(str, without_sockets)],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert list(cache.glob("scratch/*")) == []
    assert list(temporary.glob("pymp-*")) == []
    return ended


@pytest.fixture
def short() -> Iterator[Path]:
    """A socket in it has a path that the system takes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("length", [60, 120])  # too long with the name of a socket, and without it
def test_workers_start_whatever_the_path_of_the_cache(length: int, short: Path) -> None:
    cache = short / ("x" * length)
    ended = step_with_workers(cache, short / "tmp")
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


def test_workers_start_where_the_cache_takes_no_sockets(short: Path) -> None:
    ended = step_with_workers(short / "cache", short / "tmp", short / "cache")
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


@pytest.mark.parametrize("is_long", [True, False])
def test_the_folders_are_named_where_no_socket_can_be_made(is_long: bool, short: Path) -> None:
    place = short / ("x" * 120) if is_long else short
    folders = place / "cache", place / "tmp"
    ended = step_with_workers(*folders, *(() if is_long else folders))
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(
        "metta.errors.EnvError: worker processes need a Unix socket, which cannot"
    )
    assert ("AF_UNIX path too long" if is_long else "Operation not permitted") in said
    assert all(text in said for text in (str(place / "tmp"), "METTA_CACHE_DIR or TMPDIR"))


@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_programs_of_the_current_folder_are_not_found(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / entry / "metta-planted"
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("#!/bin/sh\n")
    planted.chmod(planted.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{entry}{os.pathsep}/usr/bin")
    assert find_program("metta-planted") is None
    monkeypatch.setenv("PATH", str(planted.parent))
    assert find_program("metta-planted") == str(planted)
