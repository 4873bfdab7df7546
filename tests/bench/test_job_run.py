import sys
from pathlib import Path

import pytest

from benchmarks.speed.job_run import Job, Run, read_line, run_job
from benchmarks.speed.steady_state import Point

FAKE = """
import sys, time
for iteration in range(1, 8):
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    print("a line that means nothing")
    print(iteration * 100, time.monotonic(), flush=True)
print("result episode_return 12.5")
{end}
"""


def fake_peer(folder: Path, end: str = "") -> tuple[str, ...]:
    """A script that stands alone, as those of peers do."""
    script = folder / "peer.py"
    script.write_text(FAKE.format(end=end))
    return sys.executable, str(script)


def test_speed_and_memory_are_measured_when_a_job_reports_its_steps(tmp_path: Path) -> None:
    run = run_job(Job("fake", fake_peer(tmp_path)), timeout_seconds=60)
    assert run.error is None
    assert run.steps_per_second is not None
    # 100 steps take 20 ms of processor time: no more than 5000 a second
    assert 0 < run.steps_per_second <= 5001
    assert run.numbers["peak_mib"] > 1
    assert run.numbers["episode_return"] == 12.5
    assert run.disturbance == run.foreign_cores + run.stolen_cores


def test_a_number_replaces_the_measured_one_when_the_job_reports_it(tmp_path: Path) -> None:
    command = fake_peer(tmp_path, 'print("result steps_per_second 77")')
    assert run_job(Job("fake", command), timeout_seconds=60).steps_per_second == 77.0


def test_the_last_messages_are_shown_when_a_job_fails(tmp_path: Path) -> None:
    command = fake_peer(tmp_path, "raise SystemExit('the peer is tired')")
    run = run_job(Job("fake", command), timeout_seconds=60)
    assert run.numbers == {}
    assert run.error == "ended with status 1\nthe peer is tired"
    assert run.steps_per_second is None


def test_the_error_says_so_when_a_job_reports_nothing() -> None:
    run = run_job(Job("silent", (sys.executable, "-c", "pass")), timeout_seconds=60)
    assert run.error is not None
    assert "reported 0 points of progress" in run.error


def test_a_job_is_ended_when_it_takes_too_long() -> None:
    code = "import time; time.sleep(60)"
    run = run_job(Job("slow", (sys.executable, "-c", code)), timeout_seconds=0.3)
    assert run == Run("slow", {}, error="did not end within 0.3 s")


def test_a_job_is_over_when_its_daemon_holds_the_pipe(tmp_path: Path) -> None:
    start = "import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    slow = start + "\ntime.sleep(0.3)"  # long enough that the daemon is seen
    assert run_job(Job("fake", fake_peer(tmp_path, slow)), timeout_seconds=60).error is None


def test_jobs_work_in_an_empty_folder_and_hear_their_environment_when_they_run() -> None:
    code = (
        "import os, time\nassert os.listdir() == []\nopen('trace', 'w').close()\n"
        "assert os.environ['THREADS'] == '1'\nassert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n"
        "for n in range(1, 9): print(n, time.monotonic()); time.sleep(0.001)"
    )
    job = Job("fake", (sys.executable, "-c", code), {"THREADS": "1"})
    assert run_job(job, timeout_seconds=60).error is None


@pytest.mark.parametrize(
    ("line", "points"),
    [
        ("1024 12.5\n", [Point(1024.0, 12.5)]),
        ("1024 12\n", [Point(1024.0, 12.0)]),
        ("1024 steps\n", []),
        ("epoch 1024 12.5\n", []),
        ("SPS: 400\n", []),
    ],
)
def test_a_line_counts_when_it_has_steps_and_a_clock(line: str, points: list[Point]) -> None:
    found: list[Point] = []
    read_line(line, Job("fake", ()), found, {})
    assert found == points


def test_lines_count_steps_when_the_job_prints_in_its_own_way() -> None:
    job = Job("own", (), step_line="SPS:", steps_per_line=1024)
    points: list[Point] = []
    for line in ("SPS: 400\n", "global_step=3, episodic_return=9\n", "SPS: 410\n", "5 5.0\n"):
        read_line(line, job, points, {})
    assert [point.steps for point in points] == [1024, 2048]
    assert points[0].time <= points[1].time
