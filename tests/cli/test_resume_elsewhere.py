"""`metta resume` on another kind of machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metta.cli.main import main

METTA = [sys.executable, "-m", "metta.cli.main"]
SMALL = [
    "total_timesteps=64", "num_envs=2", "horizon=8", "num_minibatches=1", "update_epochs=1",
    "hidden_size=8", "checkpoint_interval=1", "eval_episodes=0", "final_replay=false",
]  # fmt: skip
MORE = ["resume", "run", "total_timesteps=96"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    words = ["train", "cartpole", *SMALL, "--run", "run", "--output", str(folder / "runs")]
    assert main(words) == 0
    return folder


def test_resume_names_another_processor(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "cpuinfo"
    other.write_text("processor\t: 0\nmodel name\t: Slow 8000\ncpu family\t: 6\n\nprocessor\t: 1\n")
    script = f'mount --bind {other} /proc/cpuinfo && exec "$@"'
    before = ("unshare", "-rm", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], check=False).returncode:
        pytest.skip("another /proc/cpuinfo cannot be mounted here")
    done = subprocess.run(
        [*before, *METTA, *MORE], cwd=run, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("metta: InexactResumeError: ")
    assert ", now Slow 8000, cpu family 6. It would" in done.stderr


@pytest.mark.filterwarnings("default::metta.errors.MettaWarning")  # the command prints them
def test_resume_names_variables_that_steer_libraries(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Nehalem"}
    before = {name: os.environ.get(name) or "not set" for name in variables}
    texts = [f"{name} was {before[name]}, now {value}" for name, value in variables.items()]
    monkeypatch.chdir(run)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    assert main(MORE) == 2
    said = capsys.readouterr().err
    assert said.startswith("metta: InexactResumeError: ")
    assert all(text in said for text in texts)
    assert main([*MORE, "--allow-inexact"]) == 0
    said = capsys.readouterr().err
    assert all(text in said for text in texts)
