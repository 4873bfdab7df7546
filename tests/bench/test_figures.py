import struct
import sys
from pathlib import Path

import pytest

from benchmarks.speed.figures import draw_results
from benchmarks.speed.job_run import Run
from benchmarks.speed.session import Results
from metta.errors import MissingExtraError


def results(*jobs: str) -> Results:
    return {job: [Run(job, {"steps_per_second": 100.0 * n}) for n in (1, 2)] for job in jobs}


def width_of(path: Path) -> int:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">I", content[16:20])[0]


def test_bars_are_drawn_when_jobs_are_compared(tmp_path: Path) -> None:
    failed: Results = {"skrl": [None]}
    path = draw_results(tmp_path / "w1.png", {**results("metta", "sb3"), **failed}, "w1")
    assert width_of(path) == 8 * 120


def test_curves_are_drawn_when_jobs_are_places_on_axes(tmp_path: Path) -> None:
    jobs = results("num_envs=1", "num_envs=4", "horizon=16", "num_hooks=0")
    assert width_of(draw_results(tmp_path / "growth.png", jobs, "growth")) == 3 * 4 * 120


def test_a_place_is_left_out_when_its_job_failed(tmp_path: Path) -> None:
    jobs, failed = results("num_envs=1", "num_envs=4"), {"num_envs=16": [None, None]}
    whole = draw_results(tmp_path / "a.png", jobs, "growth").read_bytes()
    assert draw_results(tmp_path / "b.png", {**jobs, **failed}, "growth").read_bytes() == whole


def test_a_picture_is_drawn_when_there_is_nothing_to_show(tmp_path: Path) -> None:
    assert width_of(draw_results(tmp_path / "none.png", {}, "nothing")) == 8 * 120


def test_the_error_says_how_to_install_when_there_is_no_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'metta-rl\[plot\]'"):
        draw_results(tmp_path / "w1.png", results("metta"), "w1")
