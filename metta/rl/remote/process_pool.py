"""`ProcessPool`: shards are collected by other processes on this machine."""

import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from metta.envs.workers.guardian import Guardian
from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.worker import die_with_trainer, pack, settle_in, unpack
from metta.envs.workers.worker_process import worker_context
from metta.processes import WorkerContext, start_process
from metta.rl.remote.pool import Answer, run_task
from metta.rl.remote.shard_worker import ShardWorker
from metta.rl.remote.tasks import CollectSetup, Moment, ShardFailure, ShardTask

__all__ = ["ProcessPool"]

_END_SECONDS = 5.0
_MOMENT, _TASK = b"moment", b"task"
_Given = tuple[int, bytes, bytes] | None
"""Ticket of the moment, the moment, and the task; None: close."""


class ProcessPool:
    """Processes below this one, each with a pipe; they end with it.

    What is pickled goes through the pipe between a trainer and its own processes only.
    """

    def __init__(self, setup: CollectSetup, size: int) -> None:
        self._setup, self._context = pack(setup), worker_context()
        self._guardian: Guardian | None = Guardian(self._context)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._moment = -1, b""
        self.processes = list(range(size))
        self._places: list[_Process] = []
        try:
            for place in range(size):
                self._places.append(self._start(place))
        except BaseException:
            self.close()
            raise

    def _start(self, place: int) -> "_Process":
        process = _Process(self._context, self._setup, place, self.processes[place], self._answers)
        assert self._guardian is not None
        self._guardian.watch(place, process.pid)
        return process

    def begin(self, moment: Moment) -> None:
        """Pack it once; each process gets it before its next task."""
        self._moment = moment.ticket, pack(moment)

    def give(self, place: int, task: ShardTask) -> None:
        """Send a task, behind those that the process has."""
        self._places[place].give((*self._moment, pack(task)))

    def wait(self, seconds: float) -> Sequence[Answer]:
        """Answers, and ends of processes."""
        found: list[Answer] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._answers.get(timeout=seconds))
            while True:
                found.append(self._answers.get_nowait())
        return found

    def restart(self, place: int) -> None:
        """Kill the process and its environments, and start another."""
        self._places[place].close()
        self.processes[place] = max(self.processes) + 1
        self._places[place] = self._start(place)

    def close(self) -> None:
        """Kill all."""
        for process in self._places:
            process.close()
        self._places.clear()
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    @property
    def pids(self) -> list[int]:
        """Of the processes, by place."""
        return [process.pid for process in self._places]


class _Process:
    """One process, and the thread that talks with it: the trainer never waits for a pipe."""

    def __init__(
        self,
        context: WorkerContext,
        setup: bytes,
        place: int,
        number: int,
        answers: "queue.SimpleQueue[Answer]",
    ) -> None:
        arguments = dict(os.environ), str(Path.cwd()), setup
        started = start_process(context, _serve, arguments, f"collecting process {place}")
        self._started, self._place, self._number = started, place, number
        self.pid = started.process.pid or 0
        self._end = ProcessEnd(self.pid, started.process.sentinel)
        self._answers = answers
        self._given: queue.SimpleQueue[_Given] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._talk, name=f"metta-collect-{place}", daemon=True
        )
        self._thread.start()

    def give(self, given: _Given) -> None:
        self._given.put(given)

    def _talk(self) -> None:
        sent = -1
        commands, answers = self._started.commands, self._started.answers
        while (given := self._given.get()) is not None:
            ticket, moment, task = given
            try:
                if moment and ticket != sent:
                    commands.send_bytes(_MOMENT)
                    commands.send_bytes(moment)
                    sent = ticket
                commands.send_bytes(_TASK)
                commands.send_bytes(task)
                outcome = unpack(answers.recv_bytes())
            except (EOFError, OSError):
                outcome = ShardFailure(f"collecting process {self._place} (pid {self.pid}) ended")
            self._answers.put(Answer(self._place, self._number, outcome))
            if isinstance(outcome, ShardFailure) and not outcome.error:
                return

    def close(self) -> None:
        self._end.kill()
        self._given.put(None)
        self._thread.join(_END_SECONDS)
        self._started.process.join(_END_SECONDS)
        self._started.commands.close()
        self._started.answers.close()
        self._end.close()


def _serve(
    environ: dict[str, str], directory: str, setup: bytes, commands: Connection, answers: Connection
) -> None:
    """Run tasks until there are no more commands."""
    threading.Thread(target=die_with_trainer, args=(commands.fileno(),), daemon=True).start()
    settle_in(environ, directory)
    warnings.simplefilter("ignore")  # those of tasks go to the trainer
    moment: Moment | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        worker: ShardWorker | None = None
        while True:
            kind, message = commands.recv_bytes(), commands.recv_bytes()
            if kind == _MOMENT:
                moment = unpack(message)
                continue
            if worker is None:
                try:
                    worker = ShardWorker(unpack(setup))
                except Exception as error:  # noqa: BLE001  # the trainer raises it
                    failure = ShardFailure(f"{type(error).__name__}: {error}", type(error).__name__)
                    answers.send_bytes(pack(failure))
                    return
            outcome = run_task(worker, moment, unpack(message))
            answers.send_bytes(pack(outcome))
