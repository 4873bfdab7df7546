import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metta.loggers import SystemMonitor
from metta.loggers.monitor import cleanup_monitoring, peak_rss_mib, setup_monitoring

KEYS = {
    "rss_mib", "peak_rss_mib", "children_rss_mib", "cpu_percent", "memory_percent", "load_1m",
}  # fmt: skip


@pytest.fixture
def monitor() -> Iterator[SystemMonitor]:
    monitor = SystemMonitor(0.01)
    yield monitor
    monitor.stop()


def wait_for_look(monitor: SystemMonitor, looks: int = 1) -> dict[str, float]:
    seen: list[dict[str, float]] = []
    while len(seen) < looks:
        found = monitor.snapshot()
        if found and (not seen or found != seen[-1]):
            seen.append(found)
        time.sleep(0.001)
    return seen[-1]


def test_memory_and_processor_are_seen_when_it_looks(monitor: SystemMonitor) -> None:
    assert monitor.snapshot() == {}
    monitor.start()
    found = wait_for_look(monitor)
    assert found.keys() >= KEYS
    assert 1.0 < found["rss_mib"] <= found["peak_rss_mib"]
    assert 0.0 < found["memory_percent"] <= 100.0


def test_processor_time_is_a_share_when_there_was_a_look_before(monitor: SystemMonitor) -> None:
    assert math.isnan(monitor._look()["cpu_percent"])
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert monitor._look()["cpu_percent"] > 0.0


def test_the_peak_is_kept_when_memory_was_needed_between_two_looks(monitor: SystemMonitor) -> None:
    before = monitor._look()["rss_mib"]
    block = b"x" * (128 << 20)
    del block
    found = monitor._look()
    assert found["peak_rss_mib"] >= before + 100
    assert peak_rss_mib() >= found["peak_rss_mib"]


def test_the_peak_is_known_when_there_is_no_proc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = peak_rss_mib()
    monkeypatch.setattr("metta.loggers.monitor.Path", lambda _: tmp_path / "nothing")
    # the system's other count may have begun with the process that started this one
    assert peak_rss_mib() >= 0.5 * known


def test_children_count_when_the_process_has_some(monitor: SystemMonitor) -> None:
    before = monitor._look()["children_rss_mib"]
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert monitor._look()["children_rss_mib"] > before
    finally:
        child.communicate(b"\n")


def test_one_thread_looks_when_it_is_started_twice(monitor: SystemMonitor) -> None:
    monitor.start()
    monitor.start()
    assert [t.name for t in threading.enumerate()].count("metta-monitor") == 1
    monitor.stop()
    monitor.stop()
    assert "metta-monitor" not in [t.name for t in threading.enumerate()]


def test_it_looks_again_when_it_is_started_after_stop(monitor: SystemMonitor) -> None:
    monitor.start()
    wait_for_look(monitor)
    monitor.stop()
    monitor._latest = {}
    monitor.start()
    assert wait_for_look(monitor)


def test_a_snapshot_belongs_to_the_caller_when_it_is_changed(monitor: SystemMonitor) -> None:
    monitor._latest = {"rss_mib": 1.0}
    monitor.snapshot().clear()
    assert monitor.snapshot() == {"rss_mib": 1.0}


def test_monitoring_starts_and_stops_when_its_functions_are_called() -> None:
    monitor = setup_monitoring(60.0)
    assert wait_for_look(monitor)
    cleanup_monitoring(monitor)
    cleanup_monitoring(None)
    assert "metta-monitor" not in [t.name for t in threading.enumerate()]


def test_gpu_memory_is_seen_when_torch_uses_a_gpu(
    monitor: SystemMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    assert "gpu_memory_mib" not in monitor._look() or torch.cuda.is_initialized()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2 << 20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 << 20)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 4 << 20)
    found = monitor._look()
    names = ("gpu_memory_mib", "gpu_memory_peak_mib", "gpu_memory_reserved_mib")
    assert [found[name] for name in names] == [2.0, 3.0, 4.0]
