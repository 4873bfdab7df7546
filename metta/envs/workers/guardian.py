"""A small process that ends the workers of a trainer that was killed.

Workers end themselves when their trainer is gone, unless they cannot: a stopped process runs nothing,
and neither does one whose environment holds the interpreter. The guardian waits at the end of a pipe that
only the trainer holds, and kills remaining workers a moment after the trainer died.
"""

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import IO

from metta.envs.workers.process_end import ProcessEnd
from metta.processes import WorkerContext, start_process

__all__ = ["Guardian"]

_GRACE_SECONDS = 1.2
"""A little longer than workers take to end themselves."""
_END_SECONDS = 5.0


class Guardian:
    """The trainer's side of it."""

    def __init__(self, context: WorkerContext) -> None:
        started = start_process(context, _guard, (), "the guardian of workers")
        started.answers.close()  # it never answers
        self._process, self._writer = started.process, started.commands

    def watch(self, index: int, pid: int) -> None:
        """Guard this process, instead of the one that had this index before."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer.fileno(), f"{index} {pid}\n".encode())

    def dismiss(self) -> None:
        """Workers are gone; the guardian may go too."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer.fileno(), b"done\n")
        self._writer.close()
        self._process.join(_END_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _guard(lifeline: Connection, _: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # killing the trainer's whole process group does not kill the guardian
    os.setpgid(0, 0)
    with os.fdopen(os.dup(lifeline.fileno()), "r") as news:
        workers = _watch(news)
    deadline = time.monotonic() + _GRACE_SECONDS
    for worker in workers.values():
        worker.within(deadline - time.monotonic())
        worker.kill()


def _watch(news: IO[str]) -> dict[int, ProcessEnd]:
    """Read messages until the pipe closes; returns the workers that remain if the trainer just ended."""
    workers: dict[int, ProcessEnd] = {}
    for line in news:
        if line == "done\n":
            return {}
        index, pid = (int(word) for word in line.split())
        if index in workers:
            workers[index].close()
        workers[index] = ProcessEnd(pid)
    return workers
