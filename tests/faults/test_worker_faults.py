"""A few faults of workers; ``python -m faults.run --only worker_faults`` injects a thousand."""

import random
from pathlib import Path

import pytest

from faults import worker_faults
from faults.trial import OK


def test_nothing_hangs_or_is_left_when_workers_fail_at_random(tmp_path: Path) -> None:
    trials = list(worker_faults.trials(8, 5, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 8
    kinds = [trial.point.partition(":")[0] for trial in trials]
    assert [kinds.count(kind) for kind in worker_faults.KINDS] == [6, 1, 1]


@pytest.mark.parametrize("kind", worker_faults.KINDS)
def test_it_is_seen_when_no_fault_happens(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_faults.Session, "order", lambda *_: None)
    monkeypatch.setattr(worker_faults.Session, "places", ("step",))
    [(_, outcome, _)] = list(worker_faults.KINDS[kind](tmp_path / "s", random.Random(1), 1))
    assert "faults happened" in outcome


def test_it_is_seen_when_both_tell_different_stories(tmp_path: Path) -> None:
    session = worker_faults.Session(tmp_path / "s", random.Random(1))
    assert session.reset(3)
    assert session.steps(3)
    session.serial.reset(
        range(9, 9 + session.num_rows), session.serial.obs_spec.zeros(session.num_rows)
    )
    assert not session.steps(3)
    assert session.close() == []


def test_it_is_seen_when_a_fault_is_noticed_late() -> None:
    late = "late", OK, {"seconds": 9.0, "allowed": 1.0}
    assert worker_faults._timed(lambda: late)[1] == "noticed after 9.0 s"
    in_time = "in time", OK, {"seconds": 0.9, "allowed": 1.0}
    assert worker_faults._timed(lambda: in_time)[1] == OK
