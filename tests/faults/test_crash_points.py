"""SIGKILL at every system call of a save that changes the disk, and at some of the others."""

from pathlib import Path

import pytest

from faults import crash_points, saved_run
from faults.traced_save import Call, why_not
from faults.trial import OK

CALLS = [Call("openat", 1, '"x", O_RDONLY'), Call("openat", 2, '"x", O_WRONLY|O_CREAT'),
         Call("read", 1, "3"), Call("write", 1, "3"), Call("read", 2, "3"), Call("close", 1, "3"),
         Call("fsync", 1, "4"), Call("rename", 1, '"x", "y"')]  # fmt: skip


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "strace works")
def test_no_checkpoint_is_lost_when_a_save_is_killed_at_any_change(tmp_path: Path) -> None:
    trials = list(crash_points.trials(34, 1, tmp_path))
    assert [trial for trial in trials if trial.outcome != OK] == []
    assert len({trial.point for trial in trials}) == len(trials) == 34
    points = " ".join(trial.point for trial in trials)
    for call in ("mkdir #1", "write #4", "fsync #8", "rename #3", "unlinkat #5", "rmdir #2"):
        assert f"before {call}" in points  # every step of the protocol was a point
    found = {trial.digest for trial in trials}
    assert found == {saved_run.digest(saved_run.LATEST), saved_run.digest(saved_run.NEW)}


def test_all_calls_are_points_when_no_number_is_asked_for() -> None:
    assert crash_points.chosen(CALLS, -1) == CALLS


@pytest.mark.parametrize(("count", "others"), [(0, 0), (5, 1), (6, 2)])
def test_every_change_is_a_point_when_only_some_are_asked_for(count: int, others: int) -> None:
    chosen = crash_points.chosen(CALLS, count)
    changes = [call for call in chosen if crash_points.changes(call)]
    assert [str(call) for call in changes] == ["openat #2", "write #1", "fsync #1", "rename #1"]
    assert len(chosen) == 4 + others
