import errno
import json
import os
import threading
import warnings
from pathlib import Path

import pytest

from metta.errors import MettaError, MettaWarning
from metta.loggers import EventLog, read_events
from metta.loggers.events.append_file import AppendFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "events.jsonl"


def test_events_come_back_in_order_when_they_are_read(path: Path) -> None:
    with EventLog(path, run_id="cart") as log:
        assert log.append("run_start", {"name": "ünï"}) == 1
        assert log.append("metrics", {"loss": 0.5, "many": [1, 2]}) == 2
    first, second = read_events(path)
    assert (first.run, first.sequence, first.kind, first.payload) == (
        "cart", 1, "run_start", {"name": "ünï"},
    )  # fmt: skip
    assert second.payload == {"loss": 0.5, "many": [1, 2]}
    assert 1.6e9 < first.time <= second.time


def test_an_event_is_on_file_when_append_returns(path: Path) -> None:
    with EventLog(path) as log:
        log.append("metrics", {"loss": 0.5})
        assert [event.payload for event in read_events(path)] == [{"loss": 0.5}]


def test_lines_are_valid_json_when_numbers_are_not_finite(path: Path) -> None:
    with EventLog(path) as log:
        log.append("metrics", {"a": float("nan"), "b": [float("inf"), 1.0]})

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    event = json.loads(path.read_text(), parse_constant=refuse)
    assert event["payload"] == {"a": None, "b": [None, 1.0]}


def test_run_and_numbers_go_on_when_a_file_is_opened_again(path: Path) -> None:
    with EventLog(path) as log:
        log.append("run_start", {})
    with EventLog(path) as again:
        assert again.run_id == log.run_id
        again.append("metrics", {})
    with EventLog(path, run_id="other") as other:
        other.append("metrics", {})
    assert [event.sequence for event in read_events(path)] == [1, 2, 3]
    assert [event.run for event in read_events(path)] == [log.run_id, log.run_id, "other"]


def test_a_closed_log_opens_again_when_an_event_comes(path: Path) -> None:
    log = EventLog(path)
    log.append("metrics", {})
    log.close()
    log.close()
    log.append("metrics", {})
    log.close()
    assert [event.sequence for event in read_events(path)] == [1, 2]


@pytest.mark.parametrize("torn", ['{"run": "a", "seq', '{"run"', "\0\0\0", '{"x": 1}'])
def test_a_torn_last_line_is_left_out_and_cut_off_when_a_crash_left_it(
    path: Path, torn: str
) -> None:
    with EventLog(path) as log:
        log.append("metrics", {"number": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode())
    assert [event.sequence for event in read_events(path)] == [1]
    with EventLog(path) as log:
        assert path.read_bytes() == whole
        log.append("metrics", {"number": 2})
    assert [event.payload["number"] for event in read_events(path)] == [1, 2]


def test_a_file_of_one_torn_line_begins_anew_when_it_is_opened(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"run"')
    with EventLog(path) as log:
        log.append("metrics", {})
    assert [event.sequence for event in read_events(path)] == [1]


def test_long_lines_are_found_when_a_file_is_opened_again(path: Path) -> None:
    with EventLog(path) as log:
        log.append("metrics", {})
        log.append("metrics", {"text": "x" * 200_000})
    path.write_bytes(path.read_bytes() + b"y" * 100_000)
    with EventLog(path) as log:
        assert log.sequence == 2


def test_a_foreign_file_is_refused_when_its_last_line_is_no_event(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("agent_step,epoch\n")
    with pytest.raises(
        MettaError, match=r"is not an event: .*agent_step,epoch.*; move the file away"
    ):
        EventLog(path)


def test_a_broken_line_is_named_when_it_stands_in_the_middle(path: Path) -> None:
    with EventLog(path) as log:
        log.append("metrics", {})
    path.write_bytes(b"broken\n" + path.read_bytes())
    with pytest.raises(MettaError, match=r"line 1 of .* is not an event"):
        list(read_events(path))


def test_events_wait_in_memory_when_the_disk_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(path)
    log.append("metrics", {"number": 1})
    real, left = os.pwrite, [20]

    def full(descriptor: int, data: memoryview, place: int) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: left.pop()], place)  # half a line first, as disks do

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.warns(MettaWarning, match="cannot write .*No space left"):
            log.append("metrics", {"number": 2})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log.append("metrics", {"number": 3})  # said once
        assert [event.sequence for event in read_events(path)] == [1]
    with pytest.warns(MettaWarning, match="is written again, and complete"):
        log.append("metrics", {"number": 4})
    log.close()
    assert [event.payload["number"] for event in read_events(path)] == [1, 2, 3, 4]
    assert [event.sequence for event in read_events(path)] == [1, 2, 3, 4]


def test_lost_events_are_counted_when_the_disk_is_full_to_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = EventLog(path)
    monkeypatch.setattr(AppendFile, "append", full)
    with pytest.warns(MettaWarning, match="cannot write"):
        log.append("metrics", {})
    with pytest.warns(MettaWarning, match="1 events could not be written"):
        log.close()


def test_the_end_of_a_run_reaches_the_disk_when_it_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with EventLog(path) as log:
        log.append("metrics", {})
        assert len(synced) == 0
        log.append("run_end", {})
        assert len(synced) == 1
        log.sync()
        assert len(synced) == 2
    assert len(synced) == 3


def test_numbers_stay_unique_when_threads_append(path: Path) -> None:
    with EventLog(path) as log:
        threads = [
            threading.Thread(target=lambda: [log.append("metrics", {}) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.sequence for event in read_events(path)] == list(range(1, 201))
