import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.speed import session as module
from benchmarks.speed.job_run import Job, Run
from benchmarks.speed.session import BenchSession

NUMBERS = {"steps_per_second": 1000.0, "cpu_seconds_per_million": 100.0, "peak_mib": 300.0}
FIRST, SECOND = Job("first", ()), Job("second", ())


def run_of(job: str, foreign: float = 0.0, stolen: float = 0.0, speed: float = 1000.0) -> Run:
    return Run(job, {**NUMBERS, "steps_per_second": speed}, foreign, stolen)


class Recorded:
    """Runs that were recorded, in place of real ones."""

    def __init__(self, runs: Iterator[Run] | None = None) -> None:
        self.runs = runs
        self.played: list[str] = []

    def __call__(self, job: Job, timeout_seconds: float) -> Run:
        self.played.append(job.name)
        return run_of(job.name) if self.runs is None else next(self.runs)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch):
    def use(runs: list[Run] | None = None) -> Recorded:
        recorded = Recorded(None if runs is None else iter(runs))
        monkeypatch.setattr(module, "run_job", recorded)
        return recorded

    return use


def session_in(folder: Path, repetitions: int = 1) -> tuple[BenchSession, list[str]]:
    said: list[str] = []
    session = BenchSession(
        folder, repetitions, quiet_cores=0.2, retries=2, timeout_seconds=1.0, say=said.append
    )
    return session, said


def test_jobs_take_turns_when_there_are_several_repetitions(tmp_path: Path, play) -> None:
    recorded = play()
    results = session_in(tmp_path, 3)[0].run("w", [FIRST, SECOND])
    assert recorded.played == ["first", "second"] * 3
    assert {job: len(runs) for job, runs in results.items()} == {"first": 3, "second": 3}


def test_a_run_is_repeated_when_others_used_the_processor(tmp_path: Path, play) -> None:
    recorded = play([run_of("first", foreign=0.5), run_of("first", speed=1200.0)])
    session, said = session_in(tmp_path)
    results = session.run("w", [FIRST])
    assert recorded.played == ["first"] * 2
    (kept,) = results["first"]
    assert kept is not None
    assert kept.steps_per_second == 1200.0
    assert "(disturbed: 0.50 cores used by others)" in said[0]
    assert "disturbed" not in said[1]


def test_foreign_and_stolen_cores_count_together_when_a_run_is_judged(tmp_path: Path) -> None:
    session, _ = session_in(tmp_path)
    assert not session.is_disturbed(run_of("first", foreign=0.1, stolen=0.1))
    assert session.is_disturbed(run_of("first", foreign=0.15, stolen=0.1))


def test_the_least_disturbed_try_counts_when_none_was_quiet(tmp_path: Path, play) -> None:
    tries = [run_of("first", cores, speed=cores) for cores in (0.9, 0.3, 0.5)]
    recorded = play([*tries, run_of("second")])
    session, _ = session_in(tmp_path)
    results = session.run("w", [FIRST, SECOND])
    assert recorded.played == ["first"] * 3 + ["second"]
    assert results["first"] == [tries[1]]


def test_a_job_is_not_tried_again_when_it_failed(tmp_path: Path, play) -> None:
    failed = Run("first", {}, error="ended with status 1\nno such module")
    recorded = play([failed, run_of("second"), run_of("second")])
    session, said = session_in(tmp_path, 2)
    results = session.run("w", [FIRST, SECOND])
    assert recorded.played == ["first", "second", "second"]
    assert results["first"] == [None, None]
    assert "FAILED: ended with status 1\nno such module" in said[0]


def test_every_try_is_written_when_it_is_over(tmp_path: Path, play) -> None:
    play([run_of("first", 0.5), run_of("first"), Run("second", {}, error="x")])
    session, _ = session_in(tmp_path / "made")
    session.run("w", [FIRST, SECOND])
    rows = [json.loads(line) for line in session.results_file.read_text().splitlines()]
    assert [(row["job"], row["attempt"], row["disturbed"], row["error"]) for row in rows] == [
        ("first", 0, True, None),
        ("first", 1, False, None),
        ("second", 0, False, "x"),
    ]
    assert rows[0]["steps_per_second"] == 1000.0
    assert {row["workload"] for row in rows} == {"w"}


def test_a_line_is_said_when_a_run_is_over(tmp_path: Path, play) -> None:
    play()
    session, said = session_in(tmp_path, 2)
    session.run("w", [FIRST, SECOND])
    expected = "1,000 steps/s    100.0 CPU s/M    300 MiB"
    assert [line.startswith("w  ") and expected in line for line in said] == [True] * 4
    assert ["1/2" in said[0], "2/2" in said[3]] == [True, True]
    assert len(set(map(len, itertools.chain(said)))) == 1  # columns stand below each other
