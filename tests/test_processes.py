"""Processes that metta starts find the modules that their parent finds, and no others."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metta.processes import find_program, python_command

OWN = "from metta.envs.toy import CountdownEnv\nclass Own(CountdownEnv):\n    pass\n"
SCRIPT = """
import json, os, subprocess, sys
from pathlib import Path
from own_envs import Own
from metta.rl.ppo_trainer import PPOTrainer

class Asking(Own):
    def reset(self, **options):
        tool = Path(__file__).with_name("tool.py")
        subprocess.run([sys.executable, str(tool)], check=True)
        found = {"pid": os.getpid(), "path": sys.path, "variable": os.environ.get("PYTHONSAFEPATH")}
        Path(sys.argv[0]).with_name("found.json").write_text(json.dumps(found))
        return super().reset(**options)

with PPOTrainer(None, Asking, num_envs=1, num_workers=1, n_steps=8, num_minibatches=1) as trainer:
    trainer.collect_rollouts()
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
