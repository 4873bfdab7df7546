import os
import signal
import time
from collections.abc import Iterator

import pytest

from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import CountdownEnv
from metta.envs.workers.shared_rows import allocate_block
from metta.envs.workers.worker import CLOSE, HEADER, READY, RESET, worker_jobs
from metta.envs.workers.worker_process import (
    Message,
    ProtocolError,
    WorkerProcess,
    worker_context,
)


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    spec, context = row_spec_of(CountdownEnv()), worker_context()
    [job] = worker_jobs([CountdownEnv], spec, [((0, 1),)])
    started = WorkerProcess(context, job, allocate_block(context, spec, 1))
    assert said_by(started) == [Message(READY, 0, b"")]
    yield started
    started.kill()
    started.close()


def said_by(process: WorkerProcess) -> list[Message]:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        said = process.read()
        if said or process.has_hung_up:
            return said
        time.sleep(0.001)
    return []


def test_a_process_answers_and_ends_when_it_is_told_to(process: WorkerProcess) -> None:
    process.command(RESET)
    assert said_by(process) == [Message(RESET, 0, b"")]
    assert process.num_answers == 2
    assert process.name == f"worker 0 (pid {process.pid}, rows 0)"
    process.command(CLOSE)
    assert process.end.within(10.0)
    assert process.exit_code() == 0
    assert said_by(process) == []
    assert process.has_hung_up
    process.command(RESET)
    process.close()
    process.close()
    process.request_close()


def test_the_trainer_is_not_held_up_when_a_stopped_process_does_not_read(
    process: WorkerProcess,
) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    process.send(bytes(1 << 20), timeout_seconds=0.2)
    process.request_close()
    assert process.kill()


def test_nothing_happens_when_a_message_goes_to_a_dead_process(process: WorkerProcess) -> None:
    process.kill()
    process.send(bytes(1 << 20), timeout_seconds=30.0)


class Mouth:
    """The other end of a pipe that replaces the answers of a process."""

    def __init__(self, process: WorkerProcess) -> None:
        reader, self.writer = os.pipe()
        os.dup2(reader, process.answers)
        os.close(reader)
        os.set_blocking(process.answers, False)

    def say(self, message: bytes) -> None:
        os.write(self.writer, message)


@pytest.fixture
def mouth(process: WorkerProcess) -> Iterator[Mouth]:
    made = Mouth(process)
    yield made
    os.close(made.writer)


def test_an_answer_is_put_together_when_it_comes_in_pieces(
    process: WorkerProcess, mouth: Mouth
) -> None:
    message = HEADER.pack(7, 2, 1, 3) + b"abc" + HEADER.pack(8, 0, 2, 0)
    said = []
    for place in range(len(message)):
        mouth.say(message[place : place + 1])
        said += process.read()
    assert said == [Message(7, 2, b"abc"), Message(8, 0, b"")]
    mouth.say(HEADER.pack(1, 0, 3, 0) + HEADER.pack(2, 1, 4, 1) + b"x" + b"rest")
    assert process.read() == [Message(1, 0, b""), Message(2, 1, b"x")]


def test_nothing_was_said_when_there_is_nothing_to_read(
    process: WorkerProcess, mouth: Mouth
) -> None:
    assert process.read() == []
    assert not process.has_hung_up


@pytest.mark.parametrize(
    "message",
    [
        HEADER.pack(1, 0, 0, 0),
        HEADER.pack(1, 4, 1, 0),
        b"Segmentation fault",
        HEADER.pack(1, 0, 1, 0) + b"print this!",
    ],
    ids=["counted twice", "unknown flag", "text", "after an answer"],
)
def test_bytes_are_refused_when_they_are_no_answer(
    process: WorkerProcess, mouth: Mouth, message: bytes
) -> None:
    mouth.say(message)
    with pytest.raises(ProtocolError):
        process.read()
