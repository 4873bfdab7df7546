import multiprocessing
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

from faults.saved_envs import SavedCountdown
from metta.envs.restore.row_places import RowPlace
from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import CountdownEnv
from metta.envs.workers import worker
from metta.envs.workers.shared_rows import SharedRows, allocate_block
from metta.envs.workers.worker import (
    BRING_TO,
    CLOSE,
    FLAG_CUT,
    FLAG_ERROR,
    FRESH,
    GET_STATE,
    HEADER,
    LENGTH,
    RESET,
    SIGN_OF_LIFE,
    pack,
    unpack,
)
from metta.envs.workers.worker_rows import WorkerRows
from metta.errors import EnvError
from tests.envs.faulty_envs import FaultyEnv


def serve(factory: Any, commands: bytes) -> tuple[list[tuple[int, int, bytes]], SharedRows]:
    """Let a worker answer commands in this process: (command, flags, what it said), and its rows."""
    spec = row_spec_of(CountdownEnv())
    block = allocate_block(multiprocessing.get_context("spawn"), spec, 2)
    shared = SharedRows.over(block, spec, 2)
    rows = WorkerRows({0: factory, 1: SavedCountdown}, spec, shared, ((0, 1), (1, 2)))
    command_reader, command_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    os.write(command_writer, commands)
    os.close(command_writer)
    worker._serve(rows, command_reader, worker._AnswerPipe(answer_writer))
    os.close(answer_writer)
    rows.close()
    with os.fdopen(answer_reader, "rb") as stream:
        data = stream.read()
    os.close(command_reader)
    answers = []
    while data:
        command, flags, count, length = HEADER.unpack_from(data)
        assert count == len(answers)
        answers.append((command, flags, data[HEADER.size : HEADER.size + length]))
        data = data[HEADER.size + length :]
    return answers, shared


def with_payload(command: int, value: Any) -> bytes:
    packed = pack(value)
    return bytes([command]) + LENGTH.pack(len(packed)) + packed


def test_answers_are_eight_bytes_when_there_is_nothing_to_say() -> None:
    answers, shared = serve(CountdownEnv, bytes([RESET, 0, 1, 0, CLOSE, 0]))
    assert answers == [(RESET, 0, b""), (0, 0, b""), (1, 0, b""), (0, 0, b"")]
    assert shared.obs["obs"].tolist() == [[2.0], [1.0]]
    assert HEADER.size == 8


def test_numbers_and_cuts_are_announced_when_an_episode_ends() -> None:
    answers, shared = serve(partial(CountdownEnv, 1, truncate=True), bytes([RESET, 0, CLOSE]))
    assert answers[-1] == (0, FLAG_CUT, b'[[0, {"length": 1.0}]]')
    assert shared.arrays.truncated.tolist() == [True, False]
    assert shared.arrays.final_obs["obs"][0].tolist() == [1.0]


def test_a_worker_ends_when_commands_end() -> None:
    assert len(serve(CountdownEnv, bytes([RESET]))[0]) == 1


@pytest.mark.parametrize("missing", [1, 30])
def test_a_worker_ends_when_commands_end_in_the_middle_of_one(missing: int) -> None:
    command = with_payload(FRESH, (1, [5], [3]))
    answers, _ = serve(CountdownEnv, bytes([RESET]) + command[:-missing])
    assert [flags for _, flags, _ in answers] == [0, FLAG_ERROR]


def test_a_worker_ends_with_the_error_when_an_environment_fails() -> None:
    answers, _ = serve(partial(FaultyEnv, "raise", at=1), bytes([RESET, 0, 1]))
    command, flags, report = answers[-1]
    assert (command, flags) == (0, FLAG_ERROR)
    assert b"row 0" in report
    assert b"_misbehave" in report


def test_a_fresh_episode_answers_for_the_step_when_it_takes_its_place() -> None:
    commands = bytes([RESET, 1]) + with_payload(FRESH, (1, [5], [3])) + bytes([GET_STATE])
    answers, shared = serve(SavedCountdown, commands)
    assert answers[2] == (1, 0, b"")
    assert shared.obs["obs"].tolist() == [[0.0], [0.0]]
    assert shared.arrays.valid.tolist() == [True, False]
    states = unpack(answers[3][2])
    assert [(row["seed"], row["episode"]) for group in states for row in group] == [(0, 0), (5, 4)]


def test_rows_go_on_from_their_place_when_they_are_brought_there() -> None:
    actions = np.zeros(3, np.int64)
    place = RowPlace(seed=5, episode=2, state=None, actions=actions)
    commands = bytes([RESET, 1]) + with_payload(BRING_TO, {1: [place]}) + bytes([1, GET_STATE])
    answers, shared = serve(SavedCountdown, commands)
    brought = [answer for answer in answers if answer[0] == BRING_TO]
    assert [unpack(payload) for _, _, payload in brought] == [None]
    assert (SIGN_OF_LIFE, 0, b"") in answers
    assert shared.obs["obs"].tolist() == [[0.0], [4.0]]
    assert shared.arrays.rewards.tolist() == [0.0, 4.0]
    states = unpack(answers[-1][2])
    assert (states[1][0]["seed"], states[1][0]["episode"]) == (5, 2)
    # and a row can be brought to the state that another one had
    place = RowPlace(5, 2, states[1][0]["env"], actions[:0])
    _, shared = serve(SavedCountdown, with_payload(BRING_TO, {1: [place]}) + bytes([1]))
    assert shared.arrays.rewards.tolist() == [0.0, 5.0]
    assert shared.arrays.terminated.tolist() == [False, True]


def test_a_worker_goes_on_when_rows_cannot_be_brought_to_their_place() -> None:
    place = RowPlace(seed=5, episode=0, state=None, actions=np.zeros(5, np.int64))
    commands = with_payload(BRING_TO, {0: [place]}) + bytes([RESET, 0])
    answers, _ = serve(CountdownEnv, commands)
    error = unpack(next(payload for command, _, payload in answers if command == BRING_TO))
    assert isinstance(error, EnvError)
    assert "row 0 (" in str(error)
    assert "ended after 5 of 5 repeated actions" in str(error)
    assert [command for command, _, _ in answers][-2:] == [RESET, 0]


def test_results_in_shared_memory_stay_when_rows_are_brought_to_a_place() -> None:
    place = RowPlace(seed=5, episode=0, state=None, actions=np.zeros(2, np.int64))
    commands = bytes([RESET, 1, 1, 1, 1, 1]) + with_payload(BRING_TO, {1: [place]})
    _, shared = serve(CountdownEnv, commands)
    assert shared.arrays.rewards[1] == 5.0
    assert shared.arrays.terminated[1]
    assert shared.obs["obs"][1].tolist() == [2.0]


def test_this_process_has_nowhere_to_answer_when_it_is_no_worker() -> None:
    assert worker.answer_descriptor() is None


def test_a_forked_process_can_be_terminated_when_its_worker_ignores_that() -> None:
    child = os.fork()
    if child == 0:
        job = worker.WorkerJob(0, 1, ((0, 1),), b"", dict(os.environ), os.curdir)
        worker.settle_in(job.environ, job.directory)
        signal.raise_signal(signal.SIGTERM)
        reader, writer = os.pipe()
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(20)
            os.write(writer, b"!")
            while True:
                signal.pause()
        os.read(reader, 1)
        os.kill(grandchild, signal.SIGTERM)
        status = os.waitpid(grandchild, 0)[1]
        os._exit(0 if os.waitstatus_to_exitcode(status) == -signal.SIGTERM else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
