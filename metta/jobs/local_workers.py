"""`LocalWorkers`: processes on this machine that do jobs, and are replaced if they die."""

import contextlib
import dataclasses
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

from metta.envs.workers.guardian import Guardian
from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.worker import die_with_trainer
from metta.envs.workers.worker_process import worker_context
from metta.errors import ConfigError, DatabaseError, DatabaseUnavailableError, EnvError
from metta.jobs.ledger import JobLedger
from metta.jobs.worker import work
from metta.jobs.worker_names import worker_name
from metta.jobs.worker_settings import WorkerSettings
from metta.processes import PipedProcess, start_process

__all__ = ["LocalWorkers"]

_STOP_SECONDS = 90.0
"""A run that is stopped ends its epoch and saves first."""
_MAX_QUICK_ENDS = 5
"""Workers that die one after the other, without a job done in between, before that is an error."""


class _Worker(NamedTuple):
    started: PipedProcess
    end: ProcessEnd
    name: str

    @property
    def pid(self) -> int:
        return self.started.process.pid or 0


class LocalWorkers:
    """Worker processes that end with this one, also if it is killed.

    with LocalWorkers(settings, count=2) as workers:
        while not done:
            workers.check(ledger)          # every now and then: replaces those that died
    """

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        if count < 1:
            raise ConfigError(f"{count} workers; give 1 or more")
        runs = str(Path(settings.runs).absolute())
        self.settings = dataclasses.replace(settings, runs=runs)
        self._guardian: Guardian | None = Guardian(worker_context())
        self._workers: list[_Worker | None] = []
        self._quick_ends = 0
        try:
            for index in range(count):
                self._workers.append(self._start(index))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [worker.pid for worker in self._workers if worker is not None]

    def _start(self, index: int) -> _Worker:
        arguments = dict(os.environ), str(Path.cwd()), self.settings
        started = start_process(worker_context(), _serve, arguments, f"worker {index}")
        pid = started.process.pid or 0
        if self._guardian is not None:
            self._guardian.watch(index, pid)
        return _Worker(started, ProcessEnd(pid, started.process.sentinel), worker_name(pid))

    def check(self, ledger: JobLedger) -> bool:
        """Replace workers that died, whose jobs others may take at once; returns whether any is at work.

        One that ended by itself, because there was no job for `idle_seconds`, is not replaced.
        """
        for index, worker in enumerate(self._workers):
            if worker is None:
                continue
            if _has_done_a_job(worker):
                self._quick_ends = 0
            if not worker.end.within(0):
                continue
            self._workers[index], code = None, _close(worker)
            if code == 0:
                continue
            self._quick_ends += 1
            if self._quick_ends > _MAX_QUICK_ENDS:
                raise EnvError(
                    f"workers end before they have done a job, the last with exit code {code}; "
                    "start one in a terminal to see why: metta worker"
                )
            self._workers[index] = self._start(index)
            with contextlib.suppress(DatabaseUnavailableError):  # else its lease ends by itself
                ledger.abandon(worker.name)
        return any(self._workers)

    def close(self) -> None:
        """Let workers give back what they do, and end; may be called more than once."""
        workers, self._workers = [worker for worker in self._workers if worker is not None], []
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            if not worker.end.within(_STOP_SECONDS):
                worker.end.kill()
            _close(worker)
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.dismiss()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_done_a_job(worker: _Worker) -> bool:
    """Whether it has, since the last time."""
    has_done = False
    with contextlib.suppress(EOFError, OSError):
        while worker.started.answers.poll():
            worker.started.answers.recv_bytes()
            has_done = True
    return has_done


def _close(worker: _Worker) -> int | None:
    started = worker.started
    started.process.join()
    code = started.process.exitcode
    started.process.close()
    started.commands.close()
    started.answers.close()
    worker.end.close()
    return code


def _serve(
    environ: dict[str, str],
    directory: str,
    settings: WorkerSettings,
    commands: Connection,
    answers: Connection,
) -> None:
    """A worker process; SIGTERM lets it give back its job and end."""
    threading.Thread(target=die_with_trainer, args=(commands.fileno(),), daemon=True).start()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above decides
    with _ended_by_sigterm():
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(directory)
        warnings.simplefilter("ignore")  # results have what is worth knowing
        work(settings, worker_name(os.getpid()), lambda *_: answers.send_bytes(b"done"))


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt the block, which then ends as if it was done."""
    is_interrupted = False

    def interrupt(number: int, _: Any) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # giving a job back takes a while
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except (KeyboardInterrupt, DatabaseError):
        if not is_interrupted:  # a driver of databases makes an error of its own of an interrupt
            raise
