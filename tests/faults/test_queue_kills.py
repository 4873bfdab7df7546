"""A few disturbed jobs; ``python -m faults.run --only queue_kills`` disturbs two hundred."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.postgres_server import PostgresServer, binaries
from faults import queue_kills
from faults.trial import OK


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_every_job_has_one_result_when_workers_die_and_the_server_restarts(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_kills, "_JOBS_PER_RESTART", 8)
    monkeypatch.setattr(queue_kills, "_JOBS_PER_COURIER", 8)
    trials = list(queue_kills.disturbed_jobs(server, 8, 2, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 8
    counts = trials[0].detail
    assert (counts["worker"], counts["server"], counts["courier"]) == (2, 1, 1)


@pytest.mark.slow
def test_a_run_does_not_notice_that_its_queue_is_away(
    server: PostgresServer, tmp_path: Path
) -> None:
    trial = queue_kills.away_while_training(server, tmp_path, 1, 3.0)
    assert trial.outcome == OK
