"""A few disturbed jobs; ``python -m faults.run --only queue_kills`` disturbs two hundred."""

from pathlib import Path

import pytest

from benchmarks.postgres_server import binaries
from faults import queue_kills
from faults.trial import OK


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed")
def test_every_job_has_one_result_when_workers_die_and_the_server_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_kills, "_JOBS_PER_RESTART", 4)
    trials = list(queue_kills.trials(4, 2, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 5
    assert trials[-1].detail["worker"] >= 1
    assert trials[-1].detail["server"] == 1
