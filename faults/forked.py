"""Jobs in forked children, watched: what came back, or how the child died, and what it cost."""

import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_BATCH = 100


def most_seconds() -> float:
    """Of the processor, for one reader; four times that in tests, which share it with each other."""
    return 4.0 if "pytest" in sys.modules else 1.0


_PATIENCE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Watched:
    """One job: `value` is what it returned, as JSON knows it; `death` how its process ended instead."""

    value: Any = None
    death: str | None = None
    cpu_seconds: float = 0.0
    """Of the processor, so that a busy machine does not count."""
    grown_bytes: int = 0
    """Of the memory that is in use at the most, over what was in use before."""


def run_forked(
    jobs: Sequence[Any],
    work: Callable[[Any], Any],
    *,
    prepare: Callable[[Any], Any] | None = None,
    warm_up: Callable[[], Any] | None = None,
) -> Iterator[Watched]:
    """The results of `work` for each job, in order; a job that kills its process is one of them.

    Each child does many jobs, one after the other. What is done in `prepare`, which makes of a job what
    `work` gets, and in `warm_up`, once in each child, does not count.
    """
    done = 0
    while done < len(jobs):
        batch = jobs[done : done + _BATCH]
        for watched in _run_child(batch, (work, prepare, warm_up)):
            done += 1
            yield watched


Steps = tuple[Callable[[Any], Any], Callable[[Any], Any] | None, Callable[[], Any] | None]


def _run_child(batch: Sequence[Any], steps: Steps) -> Iterator[Watched]:
    """Results up to the end of the batch, or to the job that the child did not survive."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forks and threads do not mix
        child = os.fork()
    if child == 0:
        os.close(reading)
        _serve(batch, steps, writing)
    os.close(writing)
    answered, death = 0, None
    try:
        for line in _lines(reading):
            answered += 1
            yield Watched(**json.loads(line))
    except TimeoutError:
        death = "hung"
    finally:
        os.close(reading)
        if answered < len(batch):
            os.kill(child, signal.SIGKILL if death else 0)
        _, status = os.waitpid(child, 0)
    if answered < len(batch):
        yield Watched(death=death or f"ended with {os.waitstatus_to_exitcode(status)}")


def _lines(reading: int) -> Iterator[bytes]:
    """Lines until the other end closes; TimeoutError where none comes for long."""
    rest = b""
    while True:
        ready, _, _ = select.select([reading], [], [], _PATIENCE_SECONDS)
        if not ready:
            raise TimeoutError
        block = os.read(reading, 65536)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _serve(batch: Sequence[Any], steps: Steps, writing: int) -> None:
    work, prepare, warm_up = steps
    code = 1
    try:
        with open(writing, "wb", buffering=0) as answers:
            if warm_up is not None:
                warm_up()
            for job in batch:
                prepared = job if prepare is None else prepare(job)
                watched = _watch(work, prepared)
                answers.write(json.dumps(dataclasses.asdict(watched)).encode() + b"\n")
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)  # without the parent's cleanup


def _watch(work: Callable[[Any], Any], prepared: Any) -> Watched:
    _forget_peak()
    before, begin = memory("VmRSS"), time.process_time()
    value = work(prepared)
    seconds = time.process_time() - begin
    return Watched(value, cpu_seconds=seconds, grown_bytes=memory("VmHWM") - before)


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # where it may not, the peak of all jobs counts
        Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> int:
    """Bytes of a line of the process's own status, e.g. ``VmRSS``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"there is no {field}")
