"""The process that evaluates policies, and how the trainer starts it, talks to it and ends it.

A job is a file with the policy's weights, and what to play: the first is sent as a line with its
path, the second follows as so many bytes. Answers are lines of JSON: the scores, and then the replays where
both are wanted, so that scores do not wait for pictures. What is pickled goes through the pipe between a
trainer and its own process only, never through a file.
"""

import contextlib
import copy
import dataclasses
import fcntl
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from metta.agent.policy import Policy
from metta.envs.workers.process_end import ProcessEnd
from metta.envs.workers.worker import pack, unpack
from metta.processes import WorkerContext, start_process
from metta.store.policies.file import FrozenPolicy, load_weights, save_policy

__all__ = ["EvaluationProcess", "EvaluationRequest", "described_job", "write_weights"]

_CHUNK_BYTES = 1 << 16
_END_SECONDS = 5.0
_PIPE_BYTES = 1 << 20
_WEIGHTS_FILE = "policy.safetensors"


@dataclass(frozen=True)
class EvaluationRequest:
    """The policy to evaluate: its epoch, where it is saved, and what to do with it."""

    epoch: int
    agent_step: int
    policy_uri: str | None = None
    is_scored: bool = True
    replay_dir: str | None = None
    """Where replays of it go; None: none are recorded."""

    def about(self) -> dict[str, Any]:
        """What a replay records about its policy."""
        return {
            "epoch": self.epoch,
            "agent_step": self.agent_step,
            "policy_uri": self.policy_uri,
        }


class EvaluationProcess:
    """The trainer's side: a process that plays one job after the other."""

    def __init__(self, context: WorkerContext) -> None:
        arguments = dict(os.environ), str(Path.cwd())
        started = start_process(context, _serve, arguments, "background evaluation")
        self._process, self._commands, self._answers = (
            started.process, started.commands, started.answers,
        )  # fmt: skip
        os.set_blocking(self._answers.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # only Linux can
            # room for a job while the process is still starting
            fcntl.fcntl(self._commands.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.pid = self._process.pid or 0
        self._end = ProcessEnd(self.pid, self._process.sentinel)
        self._received = bytearray()
        self._has_hung_up = False

    @property
    def has_ended(self) -> bool:
        """Whether it cannot answer any more."""
        return self._has_hung_up or self._end.within(0)

    def give(self, weights: Path, job: bytes) -> None:
        """Let it play a job, when the one before is over; an `OSError` where it has ended."""
        about = json.dumps([len(job), str(weights)])
        _write_all(self._commands.fileno(), f"{about}\n".encode() + job)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Its answer within that time; None: no answer, or it has ended."""
        poller = select.poll()
        poller.register(self._answers.fileno(), select.POLLIN)
        poller.register(self._end.descriptor, select.POLLIN)
        deadline, is_last = time.monotonic() + seconds, False
        while True:
            line, newline, rest = self._received.partition(
                b"\n"
            )  # it may have sent more than one answer
            if newline:
                self._received = rest
                found: dict[str, Any] = json.loads(line)
                return found
            if is_last:
                return None
            poller.poll(max(0.0, deadline - time.monotonic()) * 1000.0)
            is_last = self.has_ended or time.monotonic() >= deadline
            self._read()  # after the check: what it sent before its end can now be read

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self._has_hung_up:
                part = os.read(self._answers.fileno(), _CHUNK_BYTES)
                self._received += part
                self._has_hung_up = not part

    def end(self) -> int | None:
        """Kill it where it still runs, with the processes of its environments; returns its exit code."""
        self._commands.close()
        if self.has_ended:
            self._process.join(_END_SECONDS)
        self._end.kill()
        self._process.join(_END_SECONDS)
        code = self._process.exitcode
        if code is not None:
            self._process.close()
        self._end.close()
        self._answers.close()
        return code


def described_job(evaluator: Any, policy: Policy, moment: EvaluationRequest | None = None) -> bytes:
    """What to play and the policy without its weights, which are sent in a separate file.

    Without a `moment` its scores are wanted, and nothing else.
    """
    shell = copy.deepcopy(policy).to("cpu")
    for tensor in shell.state_dict(keep_vars=True).values():
        tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)  # no memory
    return pack((evaluator, shell, moment or EvaluationRequest(0, 0), torch.get_num_threads()))


def write_weights(folder: Path, weights: FrozenPolicy) -> Path:
    """Write the weights of a job to a separate folder; returns their file."""
    return save_policy(folder / _WEIGHTS_FILE, weights)


def _read_job(weights: Path, job: bytes) -> tuple[Any, Policy, EvaluationRequest]:
    evaluator, policy, moment, num_threads = unpack(job)
    torch.set_num_threads(num_threads)
    for tensor in policy.state_dict(keep_vars=True).values():
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    load_weights(weights, policy)
    return evaluator, policy, moment


def _serve(
    environ: dict[str, str], directory: str, commands: Connection, answers: Connection
) -> None:
    """Evaluate until there are no more commands; the guardian ends a process that cannot end itself."""
    # Ctrl-C, and the SIGTERM of a batch system, reach every process; the trainer decides when to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    # with its own process group, the processes of its environments can be found and ended with it
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    warnings.simplefilter("ignore")  # the trainer reads the results, and warns
    with os.fdopen(os.dup(commands.fileno()), "rb") as jobs, contextlib.suppress(BrokenPipeError):
        while line := jobs.readline():
            length, weights = json.loads(line)
            for answer in _evaluated(Path(weights), jobs.read(length)):
                _write_all(answers.fileno(), json.dumps(answer).encode() + b"\n")


def _evaluated(weights: Path, job: bytes) -> Iterator[dict[str, Any]]:
    """Answers to a job, the last one without ``more``."""
    try:
        evaluator, policy, moment = _read_job(weights, job)
        is_recorded = moment.replay_dir is not None
        if moment.is_scored:
            evaluator.evaluate(policy)
            yield {"results": evaluator.results.to_dict(), "more": is_recorded}
        if is_recorded:
            recorded = evaluator.record(policy, moment.replay_dir, **moment.about())
            yield {"replays": dataclasses.asdict(recorded), "more": False}
    except Exception as error:  # noqa: BLE001  # any failure is reported to the trainer
        yield {"error": f"{type(error).__name__}: {error}"}


def _write_all(descriptor: int, message: bytes) -> None:
    while message:
        message = message[os.write(descriptor, message) :]
