"""Worker processes under supervision: start, command, wait, notice deaths and hangs, stop."""

import atexit
import contextlib
import json
import multiprocessing
import os
import select
import sys
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import NamedTuple, NoReturn

from metta.envs.shared_rows import SharedBlock
from metta.envs.worker import CLOSE, FLAG_ERROR, HEADER, READY, WorkerJob, worker_main
from metta.errors import EnvError

__all__ = ["Answer", "WorkerPool", "worker_context"]

WorkerContext = ForkServerContext | SpawnContext

_CLOSE_SECONDS = 5.0
_CLOSE_AFTER_FAILURE_SECONDS = 1.0
_CHUNK_BYTES = 1 << 16


class Answer(NamedTuple):
    """What a worker said: flags, and JSON bytes (mostly none)."""

    flags: int
    payload: bytes


@dataclass(slots=True)
class _Worker:
    index: int
    rows: str
    process: BaseProcess
    pid: int | None
    commands: Connection
    answers: Connection
    unread: bytes = b""
    """The beginning of an answer whose rest has not come yet."""

    @property
    def name(self) -> str:
        return f"worker {self.index} (pid {self.pid}, rows {self.rows})"


def worker_context() -> WorkerContext:
    """`forkserver`, or `spawn` where there is none; plain `fork` can deadlock under threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once by the server, so that workers start in milliseconds
    context.set_forkserver_preload([worker_main.__module__])
    return context


class WorkerPool:
    """Processes that answer commands, in order; every failure stops all of them and is an `EnvError`."""

    def __init__(
        self, context: WorkerContext, jobs: Sequence[WorkerJob], block: SharedBlock
    ) -> None:
        self._owner = os.getpid()
        self._workers: list[_Worker] = []
        self._poller = select.poll()
        self._by_descriptor: dict[int, _Worker] = {}
        self._sentinels: set[int] = set()
        self._inbox: dict[int, dict[int, Answer]] = {READY: {}}
        self._stopped = False
        # not weakref.finalize: its exit hook may run after multiprocessing's, which waits for workers
        atexit.register(self.stop)
        try:
            with _main_module_hidden():
                for job in jobs:
                    self._start(context, job, block)
        except BaseException:
            self.stop(_CLOSE_AFTER_FAILURE_SECONDS)
            raise

    def _start(self, context: WorkerContext, job: WorkerJob, block: SharedBlock) -> None:
        command_reader, command_writer = context.Pipe(duplex=False)
        answer_reader, answer_writer = context.Pipe(duplex=False)
        # not daemonic: environments may have processes of their own
        process = context.Process(
            target=worker_main,
            args=(job, block, command_reader, answer_writer),
            name=f"metta-env-worker-{job.index}",
        )
        process.start()
        command_reader.close()
        answer_writer.close()
        rows = [str(row) for first, stop in job.row_ranges for row in range(first, stop)]
        worker = _Worker(
            job.index, ", ".join(rows), process, process.pid, command_writer, answer_reader
        )
        self._workers.append(worker)
        for descriptor in (answer_reader.fileno(), process.sentinel):
            self._by_descriptor[descriptor] = worker
            self._poller.register(descriptor, select.POLLIN)
        self._sentinels.add(process.sentinel)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in order."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def post(self, command: int) -> None:
        """Send one command to every worker."""
        self._inbox[command] = {}
        message = bytes((command,))
        for worker in self._workers:
            try:
                os.write(worker.commands.fileno(), message)
            except BrokenPipeError:
                self._fail_dead(worker)

    def collect(self, command: int, timeout_seconds: float, setting: str) -> list[Answer]:
        """One answer per worker to the command posted before, in the order of the workers.

        `setting` names what a user can change where the timeout is too short.
        """
        inbox = self._inbox[command]
        deadline = time.monotonic() + timeout_seconds
        while len(inbox) < len(self._workers):
            remaining = deadline - time.monotonic()
            events = self._poller.poll(max(0.0, remaining) * 1000.0)
            for descriptor, _ in events:
                self._receive(descriptor)
            if not events and remaining <= 0:
                self._fail_hung(inbox, timeout_seconds, setting)
        return [inbox[index] for index in range(len(self._workers))]

    def stop(self, grace_seconds: float = _CLOSE_SECONDS) -> None:
        """Ask workers to close, wait, kill what remains; may be called more than once."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        for worker in self._workers:
            with contextlib.suppress(BrokenPipeError):
                os.write(worker.commands.fileno(), bytes((CLOSE,)))
            # a worker that still answers finds its pipe broken and ends
            worker.answers.close()
        deadline = time.monotonic() + grace_seconds
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            # not before: a worker whose commands end believes that the trainer died
            worker.commands.close()
            worker.process.close()

    def _receive(self, descriptor: int) -> None:
        worker = self._by_descriptor[descriptor]
        if descriptor in self._sentinels or not self._read_answers(worker):
            self._fail_dead(worker)

    def _read_answers(self, worker: _Worker) -> bool:
        """Put what has come from a worker into the inbox; False: nothing more will come."""
        chunk = os.read(worker.answers.fileno(), _CHUNK_BYTES)
        unread = worker.unread + chunk
        while len(unread) >= HEADER.size:
            command, flags, length = HEADER.unpack_from(unread)
            end = HEADER.size + length
            if len(unread) < end:
                break
            payload, unread = unread[HEADER.size : end], unread[end:]
            if flags & FLAG_ERROR:
                self._fail_env(worker, payload)
            self._inbox[command][worker.index] = Answer(flags, payload)
        worker.unread = unread
        return bool(chunk)

    def _fail_env(self, worker: _Worker, payload: bytes) -> NoReturn:
        report = json.loads(payload)
        self._fail(
            f"{report['message']}\nin {worker.name}; original traceback:\n{report['traceback']}"
        )

    def _fail_dead(self, worker: _Worker) -> NoReturn:
        # its last words may be the error that it died of
        while worker.answers.poll() and self._read_answers(worker):
            pass
        worker.process.join(_CLOSE_AFTER_FAILURE_SECONDS)
        code = worker.process.exitcode
        self._fail(
            f"{worker.name} died with exit code {code}; an environment ended its process, crashed it, "
            "or the system killed it (out of memory?): run it with num_workers=0 to see where"
        )

    def _fail_hung(
        self, inbox: dict[int, Answer], timeout_seconds: float, setting: str
    ) -> NoReturn:
        hung = [worker for worker in self._workers if worker.index not in inbox]
        for worker in hung:
            worker.process.kill()
        names = ", ".join(worker.name for worker in hung)
        self._fail(
            f"{names} did not answer within {timeout_seconds:g} s and was killed; an environment hangs, "
            f"or is slower than that: raise {setting}"
        )

    def _fail(self, message: str) -> NoReturn:
        self.stop(_CLOSE_AFTER_FAILURE_SECONDS)
        raise EnvError(message)


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep new processes from importing the user's script.

    Factories travel by value, so workers do not need the script: they start without its imports, and
    it needs no ``if __name__ == "__main__"`` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
