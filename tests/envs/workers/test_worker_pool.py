import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from faults.saved_envs import SavedCountdown
from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import CountdownEnv
from metta.envs.workers.pool import Answer, Limit, WorkerPool, WorkersFailedError
from metta.envs.workers.shared_rows import allocate_block
from metta.envs.workers.worker import (
    BRING_TO,
    FLAG_ERROR,
    FRESH,
    GET_STATE,
    HEADER,
    READY,
    RESET,
    unpack,
    worker_jobs,
)
from metta.envs.workers.worker_process import worker_context
from metta.errors import EnvError
from tests.envs.processes import all_gone, is_alive

LONG, SHORT = Limit(60.0, "patience"), Limit(0.2, "patience")
QUIET = Answer(0, b"")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    spec, context = row_spec_of(CountdownEnv()), worker_context()
    jobs = worker_jobs([SavedCountdown] * 2, spec, [((0, 1),), ((1, 2),)])
    workers = WorkerPool(context, jobs, allocate_block(context, spec, 2))
    workers.collect(READY, LONG)
    yield workers
    workers.stop()


def test_answers_wait_for_their_turn_when_commands_overtake_each_other(pool: WorkerPool) -> None:
    for command in (RESET, 0):
        pool.post(command)
    assert pool.steps_under_way == [0]
    assert pool.collect(0, LONG) == [QUIET] * 2
    assert pool.steps_under_way == []
    assert pool.collect(RESET, LONG) == [QUIET] * 2


def test_workers_go_on_when_a_forked_copy_of_the_trainer_stops_them(pool: WorkerPool) -> None:
    child = os.fork()
    if child == 0:
        pool.stop()
        os._exit(0)
    os.waitpid(child, 0)
    pool.post(RESET)
    assert len(pool.collect(RESET, LONG)) == 2


def test_pids_are_still_known_when_workers_are_stopped(pool: WorkerPool) -> None:
    pids = pool.pids
    pool.stop()
    pool.stop()
    assert pool.pids == pids


def test_every_failure_is_told_when_workers_die_together(pool: WorkerPool) -> None:
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    assert all_gone(pool.pids)
    time.sleep(0.5)  # a zombie's ends of pipes may be open a little longer
    pool.post(RESET)
    with pytest.raises(WorkersFailedError) as caught:
        pool.collect(RESET, LONG)
    assert sorted(failure.worker for failure in caught.value.failures) == [0, 1]
    assert [failure.rows for failure in caught.value.failures] == [(0,), (1,)]
    assert "exit code -9" in str(caught.value)
    # nobody waits for them any more
    assert pool._by_descriptor == {}


def test_a_new_process_answers_when_the_old_one_is_replaced(pool: WorkerPool) -> None:
    old, kept = pool.pids
    pool.post(RESET)
    pool.collect(RESET, LONG)
    os.kill(old, signal.SIGSTOP)
    pool.post(0)
    with pytest.raises(WorkersFailedError, match=r"within 0.2 s and was killed.*raise patience"):
        pool.collect(0, SHORT)
    assert not is_alive(old)
    pool.restart(0)
    assert pool.pids[1] == kept
    assert pool.wait_for(0, READY, LONG) == QUIET
    # it knows nothing of what the old one was asked
    pool.send(0, RESET, LONG)
    pool.expect(RESET)
    pool.wait_for(0, RESET, LONG)
    pool.send(0, 0, LONG)
    pool.wait_for(0, 0, LONG)
    assert pool.collect(0, LONG) == [QUIET] * 2


def test_an_answer_of_the_old_process_is_dropped_when_it_is_replaced(pool: WorkerPool) -> None:
    pool.post(RESET)
    pool.collect(RESET, LONG)
    pool.post(0)
    assert pool.wait_for(0, 0, LONG) == QUIET
    os.kill(pool.pids[0], signal.SIGKILL)
    pool.post(RESET)
    with pytest.raises(WorkersFailedError):
        pool.collect(RESET, LONG)
    pool.restart(0)
    assert pool.wait_for(0, READY, LONG) == QUIET
    with pytest.raises(WorkersFailedError, match="did not answer"):
        pool.wait_for(0, 0, SHORT)


def test_a_command_with_a_payload_reaches_one_worker_when_it_is_sent_there(
    pool: WorkerPool,
) -> None:
    pool.expect(0)
    pool.send(1, FRESH, LONG, (0, [7], [4]))
    pool.mark_answered(0, 0)
    assert pool.collect(0, LONG) == [QUIET] * 2
    pool.post(GET_STATE)
    states = [unpack(answer.payload)[0][0] for answer in pool.collect(GET_STATE, LONG)]
    assert [(state["seed"], state["episode"]) for state in states] == [(0, 0), (7, 5)]


def test_a_forgotten_command_is_garbage_when_it_is_answered_after_all(pool: WorkerPool) -> None:
    pool.expect(BRING_TO)
    pool.send(0, BRING_TO, LONG, {})
    pool.forget(BRING_TO)
    pool.post(RESET)
    with pytest.raises(WorkersFailedError, match="something that is not an answer"):
        pool.collect(RESET, LONG)


@pytest.mark.parametrize("report", [b"not JSON", b"[]", b"{}"])
def test_an_error_is_garbage_when_nobody_can_read_it(pool: WorkerPool, report: bytes) -> None:
    reader, writer = os.pipe()
    os.dup2(reader, pool._workers[1].answers)
    os.write(writer, HEADER.pack(RESET, FLAG_ERROR, 1, len(report)) + report)
    pool.post(RESET)
    with pytest.raises(WorkersFailedError, match=r"worker 1 .* that is not an answer"):
        pool.collect(RESET, LONG)
    os.close(reader)
    os.close(writer)


def test_no_process_and_no_descriptor_is_left_when_workers_were_replaced_and_stopped() -> None:
    spec, context = row_spec_of(CountdownEnv()), worker_context()
    jobs = worker_jobs([CountdownEnv], spec, [((0, 1),)])
    pids: list[int] = []

    def use_one() -> None:
        workers = WorkerPool(context, jobs, allocate_block(context, spec, 1))
        workers.collect(READY, LONG)
        os.kill(workers.pids[0], signal.SIGKILL)
        workers.post(RESET)
        with pytest.raises(WorkersFailedError):
            workers.collect(RESET, LONG)
        workers.restart(0)
        pids.extend(workers.pids)
        workers.stop()

    use_one()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (that is all that is wanted of them)
    use_one()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 (the same)
    assert all_gone(pids, 0)


def test_the_error_says_so_when_a_process_cannot_be_started(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    os.kill(pool.pids[0], signal.SIGKILL)
    pool.post(RESET)
    with pytest.raises(WorkersFailedError):
        pool.collect(RESET, LONG)
    monkeypatch.setattr("multiprocessing.popen_forkserver.Popen._launch", refuse)
    with pytest.raises(EnvError, match=r"worker 0 could not be started: .*fewer workers"):
        pool.restart(0)
    pool.stop()
    assert all_gone(pool.pids, 0)


def test_workers_are_watched_when_the_fork_server_is_gone(pool: WorkerPool) -> None:
    server = int(_stat(pool.pids[0])[1])
    os.kill(server, signal.SIGKILL)
    pool.post(RESET)
    assert pool.collect(RESET, LONG) == [QUIET] * 2
    os.kill(pool.pids[1], signal.SIGKILL)
    pool.post(0)
    with pytest.raises(WorkersFailedError, match=r"worker 1 .*died"):
        pool.collect(0, LONG)
    pool.restart(1)
    assert pool.wait_for(1, READY, LONG) == QUIET
    pids = pool.pids
    pool.stop()
    assert all_gone(pids, 0)


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 (one line of a file that is none)
        return stat.read().rpartition(")")[2].split()
