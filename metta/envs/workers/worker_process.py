"""One worker process as the trainer sees it: start it, send to it, read from it, end it."""

import contextlib
import multiprocessing
import os
import select
import time
from typing import NamedTuple

from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.shared_rows import SharedBlock
from metta.envs.workers.worker import CLOSE, FLAG_CUT, FLAG_ERROR, HEADER, WorkerJob, worker_main
from metta.processes import WorkerContext, start_process

__all__ = ["ProtocolError", "Message", "WorkerProcess", "worker_context"]

_CHUNK_BYTES = 1 << 16
_KILL_SECONDS = 5.0
_REPORT_SECONDS = 1.0
"""How long the exit code of a process that has ended may take."""
_KNOWN_FLAGS = FLAG_ERROR | FLAG_CUT


class ProtocolError(Exception):
    """A worker's bytes are not an answer."""


class Message(NamedTuple):
    """One answer of a worker."""

    command: int
    flags: int
    payload: bytes


def worker_context() -> WorkerContext:
    """`forkserver`, or `spawn` if the system has none; plain `fork` can deadlock under threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once by the server, so that workers start in milliseconds
    context.set_forkserver_preload([worker_main.__module__])
    return context


class WorkerProcess:
    """A process that serves commands; it belongs to the process that made it."""

    def __init__(self, context: WorkerContext, job: WorkerJob, block: SharedBlock) -> None:
        started = start_process(context, worker_main, (job, block), f"worker {job.index}")
        self._process, self._commands, self._answers = (
            started.process, started.commands, started.answers,
        )  # fmt: skip
        self.pid = self._process.pid or 0
        self.index = job.index
        self.rows = tuple(row for first, stop in job.row_ranges for row in range(first, stop))
        self.end = ProcessEnd(self.pid, self._process.sentinel)
        self.commands = self._commands.fileno()
        self.answers = self._answers.fileno()
        # a worker that does not read, or sends half an answer, must not block the trainer
        os.set_blocking(self.commands, False)
        os.set_blocking(self.answers, False)
        self._unread = bytearray()
        self.num_answers = 0
        """Answers, and signs of life, that came."""
        self.has_hung_up = False
        """Whether nothing more can come."""
        self._is_closed = False

    @property
    def name(self) -> str:
        """For people."""
        return f"worker {self.index} (pid {self.pid}, rows {', '.join(map(str, self.rows))})"

    def command(self, code: int) -> None:
        """Send a command that has no payload."""
        try:
            os.write(self.commands, bytes((code,)))
        except BrokenPipeError:
            return  # its end will be noticed

    def send(self, message: bytes, timeout_seconds: float) -> None:
        """Send a message of any length; what a dead or hung worker does not take is dropped.

        Its missing answer will be noticed.
        """
        poller = select.poll()
        poller.register(self.commands, select.POLLOUT)
        deadline = time.monotonic() + timeout_seconds
        with contextlib.suppress(BrokenPipeError):
            while message:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not poller.poll(remaining * 1000.0):
                    return
                message = message[os.write(self.commands, message) :]

    def read(self) -> list[Message]:
        """What can be read now; `ProtocolError` is refused."""
        try:
            chunk = os.read(self.answers, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        if len(chunk) == HEADER.size and not self._unread:
            # what nearly every step gets: one empty answer
            command, flags, count, length = HEADER.unpack(chunk)
            if count == self.num_answers & 0xFFFF and flags <= _KNOWN_FLAGS and not length:
                self.num_answers += 1
                return [Message(command, flags, b"")]
        self.has_hung_up = not chunk
        self._unread += chunk
        return self._parse()

    def _parse(self) -> list[Message]:
        unread, answers, start = self._unread, [], 0
        while len(unread) >= start + HEADER.size:
            command, flags, count, length = HEADER.unpack_from(unread, start)
            if count != self.num_answers & 0xFFFF or flags > _KNOWN_FLAGS:
                raise ProtocolError
            body = start + HEADER.size
            if len(unread) < body + length:
                break
            start = body + length
            answers.append(Message(command, flags, bytes(unread[body:start])))
            self.num_answers += 1
        del unread[:start]
        return answers

    def exit_code(self) -> int | None:
        """Of a process that has ended."""
        self._process.join(_REPORT_SECONDS)
        return self._process.exitcode

    def kill(self) -> bool:
        """End it at once, and the processes of its environments; False: even the kernel could not."""
        if self._is_closed:
            return True
        self.end.kill()
        return self.end.within(_KILL_SECONDS)

    def request_close(self) -> None:
        """Ask it to close its environments and end."""
        if self._is_closed:
            return
        with contextlib.suppress(BlockingIOError):
            self.command(CLOSE)
        # where it still answers, it finds its pipe broken and ends; commands stay open: a worker whose
        # commands end assumes that the trainer died
        self._answers.close()

    def close(self) -> None:
        """Release a process that has ended; may be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._answers.close()
        self._commands.close()
        self._process.join(_REPORT_SECONDS)
        if self._process.exitcode is not None:
            self._process.close()
        self.end.close()
