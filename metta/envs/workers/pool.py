"""Worker processes: start, command, wait, notice deaths and hangs, replace, stop."""

import atexit
import json
import os
import select
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metta.envs.workers.guardian import Guardian
from metta.envs.workers.shared_rows import SharedBlock
from metta.envs.workers.worker import (
    FLAG_ERROR,
    LENGTH,
    MAX_GROUPS,
    READY,
    SIGN_OF_LIFE,
    WITH_PAYLOAD,
    WorkerJob,
    pack,
)
from metta.envs.workers.worker_process import ProtocolError, WorkerProcess
from metta.errors import EnvError
from metta.processes import WorkerContext

__all__ = ["Answer", "Limit", "WorkerFailure", "WorkerPool", "WorkersFailedError"]

_CLOSE_SECONDS = 5.0
_CLOSE_AFTER_FAILURE_SECONDS = 1.0


class Answer(NamedTuple):
    """A worker's answer: flags, and bytes (mostly none)."""

    flags: int
    payload: bytes


class Limit(NamedTuple):
    """How long an answer may take, and the setting by which a user can change that."""

    seconds: float
    setting: str


@dataclass(frozen=True)
class WorkerFailure:
    """How a worker ended."""

    worker: int
    rows: tuple[int, ...]
    message: str
    """Names the worker and what happened."""
    is_env_error: bool
    """Whether an environment raised: the message then has the original traceback."""
    noticed_at: float
    """On the monotonic clock."""


class WorkersFailedError(Exception):
    """Workers that were waited for will not answer."""

    def __init__(self, failures: Iterable[WorkerFailure]) -> None:
        self.failures = list(failures)
        super().__init__("; ".join(failure.message for failure in self.failures))


class WorkerPool:
    """Processes that answer commands, in order.

    A worker that failed is killed when it is noticed, and its failure raised where answers are waited
    for; `restart` puts a new process in its place.
    """

    def __init__(
        self, context: WorkerContext, jobs: Sequence[WorkerJob], block: SharedBlock
    ) -> None:
        self._owner = os.getpid()
        self._context, self._jobs, self._block = context, list(jobs), block
        self._workers: list[WorkerProcess] = []
        self._poller = select.poll()
        self._by_descriptor: dict[int, WorkerProcess] = {}
        self._failures: dict[int, WorkerFailure] = {}
        self._inbox: dict[int, dict[int, Answer]] = {READY: {}}
        self._patience = self._deadline = 0.0
        self._stopped = False
        # not weakref.finalize: its exit hook may run after multiprocessing's, which waits for workers
        atexit.register(self.stop)
        self._guardian: Guardian | None = None
        try:
            self._guardian = Guardian(context)
            for job in jobs:
                self._workers.append(self._start(job))
        except BaseException:
            self.stop(_CLOSE_AFTER_FAILURE_SECONDS)
            raise

    def _start(self, job: WorkerJob) -> WorkerProcess:
        worker = WorkerProcess(self._context, job, self._block)
        if self._guardian is not None:
            self._guardian.watch(worker.index, worker.pid)
        for descriptor in (worker.answers, worker.end.descriptor):
            self._by_descriptor[descriptor] = worker
            self._poller.register(descriptor, select.POLLIN)
        return worker

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in order."""
        return [worker.pid for worker in self._workers]

    @property
    def steps_under_way(self) -> list[int]:
        """Groups whose step was posted and not collected yet, in the order of posting."""
        return [command for command in self._inbox if command < MAX_GROUPS]

    def expect(self, command: int) -> None:
        """Begin to gather answers to a command that is sent to one worker at a time."""
        self._inbox[command] = {}

    def forget(self, command: int) -> None:
        """Expect no answers to a command any more."""
        del self._inbox[command]

    def post(self, command: int, but_not_to: Collection[int] = ()) -> None:
        """Send one command to every worker; a dead one is noticed when answers are collected."""
        self._inbox[command] = {}
        for worker in self._workers:
            if worker.index not in but_not_to:
                worker.command(command)

    def send(self, index: int, command: int, limit: Limit, payload: object = None) -> None:
        """Send one command to one worker."""
        message = bytes((command,))
        if command in WITH_PAYLOAD:
            packed = pack(payload)
            message += LENGTH.pack(len(packed)) + packed
        self._workers[index].send(message, limit.seconds)

    def collect(self, command: int, limit: Limit) -> list[Answer]:
        """One answer per worker to the command posted before, in the order of the workers.

        `WorkersFailedError` where some will not come; once they were replaced it can be called again.
        """
        inbox = self._inbox[command]
        self._begin_to_wait(limit)
        while len(inbox) < len(self._workers) and not self._failures:
            if not self._receive():
                for worker in self._workers:
                    if worker.index not in inbox:
                        self._give_up_hung(worker, limit)
        if self._failures:
            raise WorkersFailedError(self._failures.values())
        del self._inbox[command]
        return [inbox[index] for index in range(len(inbox))]

    def wait_for(self, index: int, command: int, limit: Limit) -> Answer:
        """The answer of one worker to a command that is expected of it."""
        inbox = self._inbox[command]
        self._begin_to_wait(limit)
        while index not in inbox:
            if index not in self._failures and not self._receive():
                self._give_up_hung(self._workers[index], limit)
            if index in self._failures:
                raise WorkersFailedError([self._failures[index]])
        return inbox[index]

    def mark_answered(self, index: int, command: int) -> None:
        """Take a command as answered by this worker, with an empty answer."""
        self._inbox[command][index] = Answer(0, b"")

    def restart(self, index: int) -> None:
        """Put a new process in the place of one that failed; it answers `READY` first."""
        self._workers[index].close()
        self._inbox.setdefault(READY, {})
        for inbox in self._inbox.values():
            inbox.pop(index, None)
        self._workers[index] = self._start(self._jobs[index])
        del self._failures[index]

    def stop(self, grace_seconds: float = _CLOSE_SECONDS) -> None:
        """Ask workers to close, wait, kill what remains; may be called more than once."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        for worker in self._workers:
            worker.request_close()
        try:
            self._wait_for_end(time.monotonic() + grace_seconds)
        except BaseException:  # interrupted: the exit of this process must not wait for a worker
            for worker in self._workers:
                worker.kill()
            raise
        finally:
            if self._guardian is not None:
                self._guardian.dismiss()

    def _wait_for_end(self, deadline: float) -> None:
        for worker in self._workers:
            if worker.index not in self._failures:
                worker.end.within(deadline - time.monotonic())
                worker.kill()
            worker.close()

    def _begin_to_wait(self, limit: Limit) -> None:
        self._patience = limit.seconds
        self._deadline = time.monotonic() + limit.seconds

    def _receive(self) -> bool:
        """Read answers of workers; False: none came until the deadline."""
        remaining = self._deadline - time.monotonic()
        events = self._poller.poll(max(0.0, remaining) * 1000.0)
        for descriptor, _ in events:
            # None: given up because of another event of this round
            worker = self._by_descriptor.get(descriptor)
            if worker is None:
                continue
            if descriptor != worker.answers:
                self._give_up_dead(worker)
                continue
            try:
                for command, flags, payload in worker.read():
                    if flags & FLAG_ERROR:
                        self._give_up_env(worker, payload)
                    elif command == SIGN_OF_LIFE:
                        self._deadline = time.monotonic() + self._patience
                    else:
                        self._inbox[command][worker.index] = Answer(flags, payload)
            except (ProtocolError, KeyError, TypeError, ValueError):
                self._give_up(
                    worker,
                    f"{worker.name} sent something that is not an answer, and was killed; an environment "
                    "wrote to a file descriptor that is not its own",
                )
            if worker.has_hung_up:
                self._give_up_dead(worker)
        return bool(events)

    def _give_up_env(self, worker: WorkerProcess, payload: bytes) -> None:
        report = json.loads(payload)
        message = (
            f"{report['message']}\nin {worker.name}; original traceback:\n{report['traceback']}"
        )
        self._give_up(worker, message, is_env_error=True)

    def _give_up_dead(self, worker: WorkerProcess) -> None:
        # its last answers, perhaps the error that it died of, were read just before: they come first
        how = "closed the pipe of its answers"
        if worker.end.within(_CLOSE_AFTER_FAILURE_SECONDS):
            how = f"died with exit code {worker.exit_code()}"
        self._give_up(
            worker,
            f"{worker.name} {how}; an environment ended its process, crashed it, or the system killed it "
            "(out of memory?): run it with num_workers=0 to see where",
        )

    def _give_up_hung(self, worker: WorkerProcess, limit: Limit) -> None:
        self._give_up(
            worker,
            f"{worker.name} did not answer within {limit.seconds:g} s and was killed; an environment "
            f"hangs, or is slower than that: raise {limit.setting}",
        )

    def _give_up(self, worker: WorkerProcess, message: str, *, is_env_error: bool = False) -> None:
        """Note the first failure of a worker, and end it."""
        if worker.index in self._failures:
            return
        self._failures[worker.index] = WorkerFailure(
            worker.index, worker.rows, message, is_env_error, time.monotonic()
        )
        for descriptor in (worker.answers, worker.end.descriptor):
            self._poller.unregister(descriptor)
            del self._by_descriptor[descriptor]
        if is_env_error:
            # it closes its environments
            worker.end.within(_CLOSE_AFTER_FAILURE_SECONDS)
        if not worker.kill():
            raise EnvError(f"{worker.name} cannot be killed; a disk or a device hangs: {message}")
