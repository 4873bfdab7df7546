"""A worker process: it steps some rows of every group, writes to shared memory, and answers in a few bytes.

Commands are one byte: the number of a group to step, or one of the codes below; those in `WITH_PAYLOAD`
are followed by a length and that many bytes. An answer is a header (command, flags, how many answers came
before it, length) and, if the length is not 0, that many bytes. Steps answer in JSON. What is
pickled goes between a trainer and its own workers only.
"""

import contextlib
import json
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from metta.envs.rows.row_spec import EnvFactory, RowSpec
from metta.envs.vec_env import group_slices
from metta.envs.workers.shared_rows import SharedBlock, SharedRows
from metta.envs.workers.worker_rows import WorkerRows
from metta.errors import ConfigError, EnvError, StateError

__all__ = [
    "BRING_TO",
    "CLOSE",
    "FLAG_CUT",
    "FLAG_ERROR",
    "FRESH",
    "GET_STATE",
    "HEADER",
    "MAX_GROUPS",
    "READY",
    "RESET",
    "SIGN_OF_LIFE",
    "WITH_PAYLOAD",
    "LENGTH",
    "RowRanges",
    "WorkerJob",
    "answer_descriptor",
    "die_with_trainer",
    "pack",
    "settle_in",
    "unpack",
    "worker_jobs",
    "worker_main",
    "worker_row_ranges",
]

MAX_GROUPS = 240
BRING_TO, FRESH, GET_STATE, SIGN_OF_LIFE, READY, RESET, CLOSE = range(249, 256)
WITH_PAYLOAD = frozenset({BRING_TO, FRESH})
FLAG_ERROR, FLAG_CUT = 1, 2
HEADER = struct.Struct("<BBHI")
LENGTH = struct.Struct("<I")

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_LAST_SECONDS = 1.0
"""What a worker has to close its environments once the trainer is gone."""
_SIGN_SECONDS = 0.05
"""How often a worker that repeats an episode reports that it is alive, at most."""


@dataclass(frozen=True)
class WorkerJob:
    """What a worker must know to start; plain data, so that nothing is imported for it too early."""

    index: int
    num_rows: int
    """Of the whole vectorised environment."""
    row_ranges: tuple[tuple[int, int], ...]
    """The rows of each group that this worker steps: first, and one past the last."""
    world: bytes
    """Packed: factories by row (lambdas and classes of a script too), and what their environments share."""
    environ: Mapping[str, str]
    """The trainer's environment variables, which a fork server may have started without."""
    directory: str


RowRanges = list[tuple[tuple[int, int], ...]]
"""For each worker, its rows (first, one past the last) of every group."""


def worker_row_ranges(num_rows: int, num_groups: int, num_workers: int) -> RowRanges:
    """Deal rows to workers; shares differ by at most one row."""
    slices = group_slices(num_rows, num_groups)
    group_size = num_rows // num_groups
    if not 1 <= num_workers <= group_size:
        raise ConfigError(
            f"num_workers={num_workers} does not suit {num_rows} environments in {num_groups} groups "
            f"of {group_size}: every worker needs a row of every group; try num_workers="
            f"{max(1, min(num_workers, group_size))} or num_envs={num_groups * max(1, num_workers)}"
        )
    if num_groups > MAX_GROUPS:
        raise ConfigError(f"num_groups={num_groups} is too many; at most {MAX_GROUPS} are possible")
    return [
        tuple(
            (
                rows.start + worker * group_size // num_workers,
                rows.start + (worker + 1) * group_size // num_workers,
            )
            for rows in slices
        )
        for worker in range(num_workers)
    ]


def worker_jobs(
    factories: Sequence[EnvFactory], spec: RowSpec, ranges: RowRanges
) -> list[WorkerJob]:
    """One job per worker, with the trainer's present environment variables."""
    jobs = []
    for index, mine in enumerate(ranges):
        rows = [row for first, stop in mine for row in range(first, stop)]
        jobs.append(
            WorkerJob(
                index=index,
                num_rows=len(factories),
                row_ranges=mine,
                world=pack(({row: factories[row] for row in rows}, spec)),
                environ=dict(os.environ),
                directory=str(Path.cwd()),
            )
        )
    return jobs


def pack(value: Any) -> bytes:
    """A message from the trainer to its own worker, or back."""
    try:
        return bytes(cloudpickle.dumps(value))
    except (TypeError, AttributeError, cloudpickle.pickle.PicklingError) as error:
        raise ConfigError(
            f"environments or networks cannot be sent to another process: {error}. Make locks, files and "
            "connections where the environment is made, or stay in this process (num_workers=0, "
            "collect.kind=here)"
        ) from error


def unpack(message: bytes) -> Any:
    """What `pack` packed at the other end of the pipe."""
    return cloudpickle.loads(message)


_answer_descriptor: int | None = None


def answer_descriptor() -> int | None:
    """Where this process answers if it is a worker, for faults that are injected on purpose."""
    return _answer_descriptor


def worker_main(
    job: WorkerJob, block: SharedBlock, commands: Connection, answers: Connection
) -> None:
    """Serve until asked to close, until the trainer is gone, or until an environment fails."""
    global _answer_descriptor
    threading.Thread(target=die_with_trainer, args=(commands.fileno(),), daemon=True).start()
    _answer_descriptor = answers.fileno()
    pipe = _AnswerPipe(answers.fileno())
    # the trainer is gone: no process reads the answer
    with contextlib.suppress(BrokenPipeError):
        try:
            settle_in(job.environ, job.directory)
            factories, spec = unpack(job.world)
            shared = SharedRows.over(block, spec, job.num_rows)
            rows = WorkerRows(factories, spec, shared, job.row_ranges)
        except BaseException:  # noqa: BLE001 (goes to the trainer, which raises it)
            pipe.answer_error(READY)
            return
        try:
            pipe.answer(READY)
            _serve(rows, commands.fileno(), pipe)
        finally:
            rows.close()


class _AnswerPipe:
    """Writes answers, and counts them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._count = 0
        self._last_sign = 0.0

    def answer(self, command: int, flags: int = 0, payload: bytes = b"") -> None:
        message = HEADER.pack(command, flags, self._count & 0xFFFF, len(payload)) + payload
        self._count += 1
        written = os.write(self._descriptor, message)
        while written < len(message):
            written += os.write(self._descriptor, message[written:])

    def answer_error(self, command: int) -> None:
        report = {"message": str(sys.exc_info()[1]), "traceback": traceback.format_exc()}
        self.answer(command, FLAG_ERROR, json.dumps(report).encode())

    def sign_of_life(self) -> None:
        now = time.monotonic()
        if now - self._last_sign >= _SIGN_SECONDS:
            self._last_sign = now
            self.answer(SIGN_OF_LIFE)


def _serve(rows: WorkerRows, commands: int, pipe: _AnswerPipe) -> None:
    while True:
        command = os.read(commands, 1)
        if not command or command[0] == CLOSE:
            return
        code = command[0]
        try:
            if code < MAX_GROUPS:
                stepped = rows.step(code)
                flags = FLAG_CUT if stepped.any_cut else 0
                payload = json.dumps(stepped.infos).encode() if stepped.infos else b""
            else:
                argument = _read_payload(commands) if code in WITH_PAYLOAD else None
                code, flags, payload = _run(rows, code, argument, pipe)
        except BaseException:  # noqa: BLE001 (goes to the trainer, which raises it)
            pipe.answer_error(code)
            return
        pipe.answer(code, flags, payload)


def _run(rows: WorkerRows, code: int, argument: Any, pipe: _AnswerPipe) -> tuple[int, int, bytes]:
    """Run a command that is not a step; returns the command to answer, flags and bytes."""
    if code == RESET:
        rows.reset()
        return code, 0, b""
    if code == FRESH:
        group, seeds, episodes = argument
        rows.begin_fresh(group, seeds, episodes)
        # it answers the step that was not taken
        return group, 0, b""
    result: Any = None
    try:
        if code == GET_STATE:
            result = rows.states()
        else:
            rows.bring_to(argument, pipe.sign_of_life)
    except (EnvError, StateError) as error:
        # the trainer decides what to do with rows that cannot be saved or restored
        result = error
    return code, 0, pack(result)


def _read_payload(commands: int) -> Any:
    (length,) = LENGTH.unpack(_read_exactly(commands, LENGTH.size))
    return unpack(_read_exactly(commands, length))


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise EOFError("the trainer ended in the middle of a command")
        parts += part
    return bytes(parts)


def settle_in(environ: Mapping[str, str], directory: str) -> None:
    """Become a process below a trainer: its variables, its folder, and no signals but its own."""
    # Ctrl-C, and the SIGTERM of a batch system, reach every process; the trainer decides when to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = os.getpid()

    def ignore_here(number: int, frame: types.FrameType | None) -> None:
        del frame
        if os.getpid() != worker:
            # a process that an environment forked, and now terminates
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, ignore_here)
    # with its own process group, the processes of its environments can be found and ended with it
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environ)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    os.chdir(directory)


def die_with_trainer(commands: int) -> None:
    """End a worker that is inside a step, and sees no end of commands, when the trainer is gone.

    Linux's parent-death signal would not work: the parent is the fork server, which runs for as long
    as it has children. Workers that cannot run this thread (stopped, or inside code that holds the
    interpreter) are ended by the guardian.
    """
    hangup = select.poll()
    hangup.register(commands, 0)
    hangup.poll()
    time.sleep(_LAST_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
