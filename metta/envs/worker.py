"""A worker process: it steps some rows of every group, writes to shared memory, and answers in a few bytes.

Commands are one byte: the number of a group to step, or one of the codes below. An answer is a header
(command, flags, length) and, only where there is something to say, that many bytes of JSON.
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
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

import cloudpickle

from metta.envs.gym_adapter import GymRows
from metta.envs.row_spec import EnvFactory, GymEnv, RowSpec, build_envs, probe_reset
from metta.envs.shared_rows import SharedBlock, SharedRows

__all__ = [
    "CLOSE",
    "FLAG_CUT",
    "FLAG_ERROR",
    "HEADER",
    "MAX_GROUPS",
    "READY",
    "RESET",
    "WorkerJob",
    "pack_world",
    "worker_main",
]

MAX_GROUPS = 250
READY, RESET, CLOSE = 253, 254, 255
FLAG_ERROR, FLAG_CUT = 1, 2
HEADER = struct.Struct("<BBI")

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_LAST_SECONDS = 1.0
"""What a worker has to close its environments once the trainer is gone."""


@dataclass(frozen=True)
class WorkerJob:
    """What a worker must know to start; plain data, so that nothing is imported for it too early."""

    index: int
    num_rows: int
    """Of the whole vectorised environment."""
    row_ranges: tuple[tuple[int, int], ...]
    """The rows of each group that this worker steps: first, and one past the last."""
    world: bytes
    """Made by `pack_world`."""
    environ: Mapping[str, str]
    """The trainer's environment variables, which a fork server may have started without."""
    directory: str


def pack_world(factories: Mapping[int, EnvFactory], spec: RowSpec) -> bytes:
    """Factories (lambdas and classes of a script too) and what their environments must look like."""
    return bytes(cloudpickle.dumps((dict(factories), spec)))


def worker_main(
    job: WorkerJob, block: SharedBlock, commands: Connection, answers: Connection
) -> None:
    """Serve until told to close, until the trainer is gone, or until an environment fails."""
    threading.Thread(target=_die_with_trainer, args=(commands.fileno(),), daemon=True).start()
    out = answers.fileno()
    # the trainer went away: there is nobody left to tell
    with contextlib.suppress(BrokenPipeError):
        try:
            _settle_in(job)
            station = _Station(job, block)
        except BaseException:  # noqa: BLE001 (goes to the trainer, which raises it)
            _answer_error(out, READY)
            return
        try:
            _write_all(out, HEADER.pack(READY, 0, 0))
            _serve(station, commands.fileno(), out)
        finally:
            station.close()


class _Station:
    """The rows of one worker: a `GymRows` for each group, over the shared block."""

    def __init__(self, job: WorkerJob, block: SharedBlock) -> None:
        factories, spec = cloudpickle.loads(job.world)
        envs: dict[int, GymEnv] = build_envs(factories)
        if spec.probed and 0 in envs:
            probe_reset(envs[0])
        shared = SharedRows.over(block, spec, job.num_rows)
        self._slices = [slice(first, stop) for first, stop in job.row_ranges]
        self._obs = [
            {key: array[rows] for key, array in shared.obs.items()} for rows in self._slices
        ]
        self._actions = [shared.actions[rows] for rows in self._slices]
        self._seeds = shared.seeds
        self.groups = [
            GymRows(
                [envs[row] for row in range(rows.start, rows.stop)],
                spec,
                shared.arrays.part(rows),
                rows.start,
            )
            for rows in self._slices
        ]

    def reset(self) -> None:
        for rows, group, obs in zip(self._slices, self.groups, self._obs, strict=True):
            group.reset(self._seeds[rows].tolist(), obs)

    def step(self, group: int) -> GymRows:
        rows = self.groups[group]
        # a copy: an environment may keep the action it was given
        rows.step(self._actions[group].copy(), self._obs[group])
        return rows

    def close(self) -> None:
        for rows in self.groups:
            rows.close()


def _serve(station: _Station, commands: int, answers: int) -> None:
    while True:
        command = os.read(commands, 1)
        if not command or command[0] == CLOSE:
            return
        code = command[0]
        flags, payload = 0, b""
        try:
            if code == RESET:
                station.reset()
            else:
                rows = station.step(code)
                flags = FLAG_CUT if rows.any_cut else 0
                payload = json.dumps(rows.infos).encode() if rows.infos else b""
        except BaseException:  # noqa: BLE001 (goes to the trainer, which raises it)
            _answer_error(answers, code)
            return
        _write_all(answers, HEADER.pack(code, flags, len(payload)) + payload)


def _answer_error(answers: int, code: int) -> None:
    error = sys.exc_info()[1]
    report = {"message": str(error), "traceback": traceback.format_exc()}
    payload = json.dumps(report).encode()
    _write_all(answers, HEADER.pack(code, FLAG_ERROR, len(payload)) + payload)


def _write_all(descriptor: int, message: bytes) -> None:
    written = os.write(descriptor, message)
    while written < len(message):
        written += os.write(descriptor, message[written:])


def _settle_in(job: WorkerJob) -> None:
    # Ctrl-C reaches the whole terminal group; the trainer decides when workers stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(job.environ)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    os.chdir(job.directory)


def _die_with_trainer(commands: int) -> None:
    """End a worker that is inside a step, and sees no end of commands, when the trainer is gone.

    Linux's parent-death signal would not do: the parent is the fork server, which lives on for as long
    as it has children.
    """
    hangup = select.poll()
    hangup.register(commands, 0)
    hangup.poll()
    time.sleep(_LAST_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
