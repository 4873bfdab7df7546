"""One save at a time, beside training."""

import threading

import pytest

from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError
from metta.rl.resume.background_save import BackgroundSave

RECORD = PolicyRecord("file:///x", "x", 1, 2)


def test_the_record_is_taken_once_when_a_save_is_done() -> None:
    saves, gate = BackgroundSave(), threading.Event()

    def write() -> PolicyRecord:
        assert gate.wait(30)
        return RECORD

    assert saves.take() is None
    saves.start(write)
    assert saves.take() is None
    gate.set()
    saves.wait()
    assert saves.take() is RECORD
    assert saves.take(wait=True) is None


def test_the_error_is_raised_by_take_when_a_save_fails() -> None:
    saves = BackgroundSave()

    def write() -> PolicyRecord:
        raise CheckpointError("disk full")

    saves.start(write)
    with pytest.raises(CheckpointError, match="disk full"):
        saves.take(wait=True)
    saves.start(lambda: RECORD)  # and the next one works
    assert saves.take(wait=True) is RECORD
