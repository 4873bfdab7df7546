import json
import multiprocessing
import os
from functools import partial
from typing import Any

from metta.envs import worker
from metta.envs.row_spec import row_spec_of
from metta.envs.shared_rows import SharedRows, allocate_block
from metta.envs.toy import CountdownEnv
from metta.envs.worker import CLOSE, FLAG_CUT, FLAG_ERROR, HEADER, RESET, WorkerJob, pack_world

from .faulty_envs import FaultyEnv


def serve(factory: Any, commands: bytes) -> tuple[list[tuple[int, int, Any]], SharedRows]:
    """Let a worker answer commands in this process: (command, flags, what it said), and its rows."""
    spec = row_spec_of(CountdownEnv())
    block = allocate_block(multiprocessing.get_context("spawn"), spec, 2)
    world = pack_world({0: factory, 1: CountdownEnv}, spec)
    job = WorkerJob(0, 2, ((0, 1), (1, 2)), world, environ={}, directory="")
    station = worker._Station(job, block)
    command_reader, command_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    os.write(command_writer, commands)
    os.close(command_writer)
    worker._serve(station, command_reader, answer_writer)
    os.close(answer_writer)
    station.close()
    with os.fdopen(answer_reader, "rb") as stream:
        data = stream.read()
    os.close(command_reader)
    answers = []
    while data:
        command, flags, length = HEADER.unpack_from(data)
        said = data[HEADER.size : HEADER.size + length]
        answers.append((command, flags, json.loads(said) if said else None))
        data = data[HEADER.size + length :]
    return answers, SharedRows.over(block, spec, 2)


def test_answers_are_six_bytes_when_there_is_nothing_to_say() -> None:
    answers, shared = serve(CountdownEnv, bytes([RESET, 0, 1, 0, CLOSE, 0]))
    assert answers == [(RESET, 0, None), (0, 0, None), (1, 0, None), (0, 0, None)]
    assert shared.obs["obs"].tolist() == [[2.0], [1.0]]
    assert HEADER.size == 6


def test_numbers_and_cuts_are_announced_when_an_episode_ends() -> None:
    answers, shared = serve(partial(CountdownEnv, 1, truncate=True), bytes([RESET, 0, CLOSE]))
    assert answers[-1] == (0, FLAG_CUT, [[0, {"length": 1.0}]])
    assert shared.arrays.truncated.tolist() == [True, False]
    assert shared.arrays.final_obs["obs"][0].tolist() == [1.0]


def test_a_worker_ends_when_commands_end() -> None:
    assert len(serve(CountdownEnv, bytes([RESET]))[0]) == 1


def test_a_worker_ends_with_the_error_when_an_environment_fails() -> None:
    answers, _ = serve(partial(FaultyEnv, "raise", at=1), bytes([RESET, 0, 1]))
    command, flags, report = answers[-1]
    assert (command, flags) == (0, FLAG_ERROR)
    assert "row 0" in report["message"]
    assert "_misbehave" in report["traceback"]
