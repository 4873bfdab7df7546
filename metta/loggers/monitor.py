"""`SystemMonitor`: memory and processor use, measured in a separate thread."""

import os
import re
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

__all__ = [
    "SystemMonitor",
    "children_rss_mib",
    "cleanup_monitoring",
    "peak_rss_mib",
    "setup_monitoring",
]

_MIB = float(1 << 20)


class SystemMonitor:
    """Measures every few seconds; `snapshot` returns the last numbers and costs nothing.

    monitor = SystemMonitor(seconds=5.0)
    monitor.start()
    monitor.snapshot()["rss_mib"]
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._latest: dict[str, float] = {}
        self._process = psutil.Process()
        self._cpu_seconds: dict[int, float] = {}
        self._cpu_time = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to measure; a second call changes nothing."""
        if self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="metta-monitor", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop measuring; may be called more than once, and `start` begins again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(timeout=1.0)

    def snapshot(self) -> dict[str, float]:
        """The last numbers; empty before the first measurement."""
        return dict(self._latest)

    def _run(self, stop: threading.Event) -> None:
        while True:
            self._latest = self._look()
            if stop.wait(self.seconds):
                return

    def _look(self) -> dict[str, float]:
        usage = {self._process.pid: _usage_of(self._process)}
        for child in self._process.children(recursive=True):
            usage[child.pid] = _usage_of(child)
        own_rss = usage[self._process.pid][0]
        found = {
            "rss_mib": own_rss,
            "peak_rss_mib": max(peak_rss_mib(), own_rss),
            "children_rss_mib": sum(rss for rss, _ in usage.values()) - own_rss,
            "cpu_percent": self._cpu_percent({pid: cpu for pid, (_, cpu) in usage.items()}),
            "memory_percent": psutil.virtual_memory().percent,
            "load_1m": os.getloadavg()[0],
        }
        return found | _gpu_memory()

    def _cpu_percent(self, seconds: dict[int, float]) -> float:
        """Processor time of the process tree since the last measurement; 100 is one core."""
        now = time.monotonic()
        spent = sum(new - self._cpu_seconds.get(pid, 0.0) for pid, new in seconds.items())
        passed = now - self._cpu_time
        is_first = not self._cpu_seconds
        self._cpu_seconds, self._cpu_time = seconds, now
        return float("nan") if is_first else 100.0 * spent / max(passed, 1e-9)


def peak_rss_mib() -> float:
    """The most resident memory that this process has ever had, in MiB, as the system noted it."""
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) / 1024
    # for systems without /proc; in kB, on macOS in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (_MIB if sys.platform == "darwin" else 1024)


def children_rss_mib() -> float:
    """Resident memory of all processes below this one, in MiB; shared pages count in each."""
    children = psutil.Process().children(recursive=True)
    return sum(_usage_of(child)[0] for child in children)


def _usage_of(process: psutil.Process) -> tuple[float, float]:
    """Resident memory in MiB and processor seconds; zeros for a process that has just ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            return process.memory_info().rss / _MIB, times.user + times.system
    except psutil.Error:
        return 0.0, 0.0


def _gpu_memory() -> dict[str, float]:
    """Memory of the first GPU, if torch uses one already."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "gpu_memory_mib": torch.cuda.memory_allocated() / _MIB,
        "gpu_memory_peak_mib": torch.cuda.max_memory_allocated() / _MIB,
        "gpu_memory_reserved_mib": torch.cuda.memory_reserved() / _MIB,
    }


def setup_monitoring(seconds: float) -> SystemMonitor:
    """A started monitor."""
    monitor = SystemMonitor(seconds)
    monitor.start()
    return monitor


def cleanup_monitoring(monitor: SystemMonitor | None) -> None:
    """Stop a monitor, if there is one."""
    if monitor is not None:
        monitor.stop()
