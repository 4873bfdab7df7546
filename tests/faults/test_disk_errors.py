"""Saves on disks that fail: always told of, nothing lost, and all works again afterwards."""

import pytest

from faults import disk_errors
from faults.traced_save import Call, why_not
from faults.trial import OK, Trial


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    return list(disk_errors.trials(16, 1, tmp_path_factory.mktemp("disk_errors")))


def points(trials: list[Trial], what: str) -> list[str]:
    return [trial.point for trial in trials if trial.point.startswith(what)]


def test_nothing_is_lost_or_silent_when_the_disk_fails(trials: list[Trial]) -> None:
    assert [trial for trial in trials if trial.outcome != OK] == []
    assert len({trial.point for trial in trials}) == len(trials)


def test_every_kind_of_error_was_met_when_the_disk_failed(trials: list[Trial]) -> None:
    injected = points(trials, "save: E")
    assert len(injected) >= 16
    for error in ("ENOSPC", "EIO", "EROFS", "EACCES"):
        assert any(error in point for point in injected)
    assert any(point.endswith("and after") for point in injected)
    assert len(points(trials, "config: E")) >= 4
    assert len(points(trials, "save: files of at most")) == 7


def test_a_real_file_system_was_filled_when_one_can_be_mounted(trials: list[Trial]) -> None:
    reason = disk_errors.why_no_tiny_disk()
    if reason is not None:
        pytest.skip(reason)
    assert points(trials, "tiny disk with")[:5] == [
        f"tiny disk with {pages} free pages" for pages in range(5)
    ]
    assert points(trials, "tiny disk gone read-only")


def test_each_error_comes_once_and_for_good_when_a_call_can_fail() -> None:
    calls = [Call("openat", 1, "O_RDONLY"), Call("lseek", 1, "3"), Call("openat", 2, "O_CREAT")]
    found = [f"{error} {call} {when}" for call, error, when in disk_errors.faults_of(calls)]
    assert found[:4] == [
        "EIO openat #1 1", "EIO openat #1 1+", "EACCES openat #1 1", "EACCES openat #1 1+",
    ]  # fmt: skip
    assert {point.split()[0] for point in found[4:]} == {"EIO", "EACCES", "ENOSPC", "EROFS"}
    assert not any("lseek" in point for point in found)
