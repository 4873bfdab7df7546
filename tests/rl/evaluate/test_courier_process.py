"""The trainer's side of the courier: nobody waits for it, and it is gone when it is ended."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from metta.rl.evaluate.courier_process import CourierProcess


@pytest.fixture
def courier() -> Iterator[CourierProcess]:
    process = CourierProcess()
    yield process
    process.end()
    assert not psutil.pid_exists(process.pid)


def until(courier: CourierProcess, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count and not courier.has_ended:
        found += courier.receive(1.0)
    return found


def opened(folder: Path) -> dict[str, Any]:
    return {"open": {"database": str(folder / "jobs.db"), "group": "g", "ray": None}}


def test_messages_wait_here_when_it_does_not_read(courier: CourierProcess, tmp_path: Path) -> None:
    os.kill(courier.pid, signal.SIGSTOP)
    courier.send(opened(tmp_path))
    for number in range(300):  # more than a pipe holds
        payload = {"text": "x" * 1000}
        courier.send({"post": {"number": number, "key": f"key-{number}", "payload": payload}})
    assert courier.receive() == []
    os.kill(courier.pid, signal.SIGCONT)
    (ready,) = until(courier, 1)
    assert ready == {"ready": f"sqlite:///{tmp_path}/jobs.db"}
    while courier._unsent:
        courier.receive(0.1)


def test_its_errors_have_their_types(courier: CourierProcess) -> None:
    courier.send({"open": {"database": "mysql://host/x", "group": "g", "ray": None}})
    (told,) = until(courier, 1)
    assert (told["kind"], told["made_of"]) == ("ConfigError", None)
    assert "kind 'mysql' is not supported" in told["error"]
    assert until(courier, 1) == []
    assert courier.has_ended


def test_its_end_is_noticed_when_it_is_killed(courier: CourierProcess, tmp_path: Path) -> None:
    courier.send(opened(tmp_path))
    until(courier, 1)
    os.kill(courier.pid, signal.SIGKILL)
    assert until(courier, 1) == []
    courier.send(json.loads("{}"))  # is lost, and nothing breaks
    assert courier.has_ended
