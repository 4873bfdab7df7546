"""One job in a process of its own, and what it used."""

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.speed.machine_use import ProcessTree, machine_use
from benchmarks.speed.steady_state import Point, Sample, steady_state
from metta.private_folders import temporary_folder

__all__ = ["Job", "Run", "read_line", "run_job"]

_LOOK_SECONDS = 0.1
_LAST_LINES = 15
"""Lines of a failed job's messages that are shown."""
_PROGRESS = re.compile(r"(\d+) (\d+\.?\d*)\s*$")
_RESULT = re.compile(r"result (\w+) (\S+)\s*$")


@dataclass(frozen=True)
class Job:
    """A command that prints how far it is.

    It prints ``<steps> <monotonic seconds>`` after every iteration. A line ``result NAME NUMBER`` is a
    number of its own, and ``result steps_per_second`` replaces the measured speed. With `step_line`, each
    line that begins with it means `steps_per_line` more steps instead.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    step_line: str | None = None
    steps_per_line: int = 0


@dataclass(frozen=True)
class Run:
    """What one run of a job gave."""

    job: str
    numbers: Mapping[str, float]
    """``steps_per_second``, ``cpu_seconds_per_million``, ``peak_mib``, and what the job reported."""
    foreign_cores: float = 0.0
    stolen_cores: float = 0.0
    error: str | None = None
    """Why there are no numbers: how it ended, and its last messages."""

    @property
    def disturbance(self) -> float:
        """Cores that were not there for the job: others used them, on this machine or beside it."""
        return self.foreign_cores + self.stolen_cores

    @property
    def steps_per_second(self) -> float | None:
        """Steady speed; None for a run that failed."""
        return self.numbers.get("steps_per_second")


def run_job(job: Job, timeout_seconds: float) -> Run:
    """Run a job to its end in an empty folder; one that takes too long is ended.

    Interrupted, nothing of the job is left behind.
    """
    with (
        temporary_folder("bench") as folder,
        tempfile.TemporaryFile("w+", errors="replace") as messages,
    ):
        started = time.monotonic()
        with _process(job, folder, messages) as (process, watch):
            alarm = threading.Timer(timeout_seconds, watch.tree.kill)
            alarm.start()
            try:
                points, numbers = _read(process, job)
                status = process.wait()
            finally:
                alarm.cancel()
        if time.monotonic() - started >= timeout_seconds:
            return Run(job.name, {}, error=f"did not end within {timeout_seconds:g} s")
        return _result(job, points, numbers, watch, _failure(status, messages))


@contextmanager
def _process(
    job: Job, folder: Path, messages: IO[str]
) -> Iterator[tuple["subprocess.Popen[str]", "_Watch"]]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        job.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=messages,
        text=True,
        errors="replace",
        cwd=folder,
        env={**environment, **job.environment},
        start_new_session=True,  # Ctrl-C is for whoever measures, who then ends the job
    )
    watch = _Watch(process.pid)
    try:
        yield process, watch
    finally:
        watch.stop()  # daemons of a job, too, end with it
        if process.stdout is not None:
            process.stdout.close()
        process.wait()


class _Watch:
    """Looks at a process tree ten times a second."""

    def __init__(self, pid: int) -> None:
        self.tree = ProcessTree(pid)
        self.samples: list[Sample] = []
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metta-bench-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            tree, resident = self.tree.look()
            own, machine = os.times(), machine_use()
            observer = own.user + own.system
            self.samples.append(Sample(time.monotonic(), tree, observer, *machine))
            self.peak_bytes = max(self.peak_bytes, resident)
            if not self.tree.lives():
                self.tree.kill()  # daemons would hold the pipe that is read to its end
            if self._over.wait(_LOOK_SECONDS):
                return

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self.tree.kill()


def read_line(line: str, job: Job, points: list[Point], numbers: dict[str, float]) -> None:
    """Take in what a job printed; lines that mean nothing here are passed over."""
    if job.step_line is not None:
        if line.startswith(job.step_line):
            steps = points[-1].steps if points else 0
            points.append(Point(steps + job.steps_per_line, time.monotonic()))
    elif found := _PROGRESS.match(line):
        points.append(Point(float(found[1]), float(found[2])))
    elif found := _RESULT.match(line):
        numbers[found[1]] = float(found[2])


def _read(process: "subprocess.Popen[str]", job: Job) -> tuple[list[Point], dict[str, float]]:
    points: list[Point] = []
    numbers: dict[str, float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        read_line(line, job, points, numbers)
    return points, numbers


def _failure(status: int, messages: IO[str]) -> str | None:
    if status == 0:
        return None
    messages.seek(0)
    last = messages.read().splitlines()[-_LAST_LINES:]
    return "\n".join([f"ended with status {status}", *last])


def _result(
    job: Job,
    points: list[Point],
    numbers: dict[str, float],
    watch: _Watch,
    failure: str | None,
) -> Run:
    steady = steady_state(points, watch.samples)
    if failure is None and steady is None:
        failure = f"reported {len(points)} points of progress, too few to measure; give more steps"
    if failure is not None or steady is None:
        return Run(job.name, {}, error=failure)
    found = {
        "steps_per_second": steady.steps_per_second,
        "cpu_seconds_per_million": steady.cpu_seconds_per_million,
        "peak_mib": watch.peak_bytes / (1 << 20),
        **numbers,
    }
    return Run(job.name, found, steady.foreign_cores, steady.stolen_cores)
