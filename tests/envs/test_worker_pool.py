import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from metta.envs.row_spec import row_spec_of
from metta.envs.shared_rows import allocate_block
from metta.envs.toy import CountdownEnv
from metta.envs.worker import READY, RESET, WorkerJob, pack_world
from metta.envs.worker_pool import Answer, WorkerPool, worker_context


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    spec, context = row_spec_of(CountdownEnv()), worker_context()
    jobs = [
        WorkerJob(
            row,
            2,
            ((row, row + 1),),
            pack_world({row: CountdownEnv}, spec),
            dict(os.environ),
            str(Path.cwd()),
        )
        for row in range(2)
    ]
    workers = WorkerPool(context, jobs, allocate_block(context, spec, 2))
    workers.collect(READY, 60.0, "nothing")
    yield workers
    workers.stop()


def test_answers_wait_for_their_turn_when_commands_overtake_each_other(pool: WorkerPool) -> None:
    for command in (RESET, 0):
        pool.post(command)
    quiet = [Answer(0, b"")] * 2
    assert pool.collect(0, 10.0, "nothing") == quiet
    assert pool.collect(RESET, 10.0, "nothing") == quiet


def test_an_answer_is_put_together_when_it_comes_in_pieces(pool: WorkerPool) -> None:
    reader, writer = os.pipe()
    worker = pool._workers[0]
    saved = os.dup(worker.answers.fileno())
    os.dup2(reader, worker.answers.fileno())
    pool._inbox[7] = {}
    message = b"\x07\x02\x03\x00\x00\x00abc" + b"\x07\x00\x00"
    for place in range(len(message)):
        os.write(writer, message[place : place + 1])
        assert pool._read_answers(worker)
    assert pool._inbox[7] == {0: Answer(2, b"abc")}
    assert worker.unread == b"\x07\x00\x00"
    os.dup2(saved, worker.answers.fileno())
    for descriptor in (reader, writer, saved):
        os.close(descriptor)
    worker.unread = b""


def test_workers_go_on_when_a_forked_copy_of_the_trainer_stops_them(pool: WorkerPool) -> None:
    child = os.fork()
    if child == 0:
        pool.stop()
        os._exit(0)
    os.waitpid(child, 0)
    pool.post(RESET)
    assert len(pool.collect(RESET, 10.0, "nothing")) == 2


def test_pids_are_still_known_when_workers_are_stopped(pool: WorkerPool) -> None:
    pids = pool.pids
    pool.stop()
    pool.stop()
    assert pool.pids == pids
