import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metta.envs.workers.guardian import Guardian
from metta.envs.workers.worker_process import worker_context
from tests.envs.processes import all_gone, is_alive

TRAINER = """
import os, signal, sys, time
import numpy as np
from metta.envs import MultiprocessVecEnv
from metta.envs.toy import CountdownEnv
from metta.testing import FaultEnv

faulty = lambda: FaultEnv(CountdownEnv, sys.argv[1], at_step=1)
vec_env = MultiprocessVecEnv([CountdownEnv, faulty], 2)
vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
vec_env.send(0, np.zeros(2, np.int64))
time.sleep(0.5)
print(*vec_env.worker_pids, vec_env._pool._guardian._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Any]:
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    started: list[subprocess.Popen[str]] = []

    def start(fault: str) -> tuple["subprocess.Popen[str]", list[int]]:
        process = subprocess.Popen(
            [sys.executable, str(script), fault],
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        assert process.stdout is not None
        return process, [int(word) for word in process.stdout.readline().split()]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_stopped_worker_ends_within_two_seconds_when_the_trainer_is_killed(trainer: Any) -> None:
    process, pids = trainer("stop")
    assert len(pids) == 3
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    assert all_gone(pids, 2.0)


def test_a_frozen_worker_ends_within_two_seconds_when_the_trainers_process_group_is_killed(
    trainer: Any,
) -> None:
    # not a stopped one: the system itself ends it when its parent, the fork server, is killed too
    process, pids = trainer("freeze")
    os.killpg(process.pid, signal.SIGKILL)
    assert all_gone(pids, 2.0)


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    made = Guardian(worker_context())
    yield made
    if not made._writer.closed:
        made._writer.close()
    made._process.join()
    made._process.close()


@pytest.fixture
def sleepers() -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes = [subprocess.Popen(["sleep", "60"], process_group=0) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_nobody_is_killed_when_the_guardian_is_dismissed(sleepers: Any) -> None:
    guardian = Guardian(worker_context())
    pid = guardian._process.pid
    assert pid is not None
    guardian.watch(0, sleepers[0].pid)
    begin = time.monotonic()
    guardian.dismiss()
    assert time.monotonic() - begin < 4.0
    assert not is_alive(pid)
    assert is_alive(sleepers[0].pid)


def test_only_the_newest_worker_of_an_index_is_killed_when_the_trainer_is_gone(
    guardian: Guardian, sleepers: Any
) -> None:
    guardian.watch(0, sleepers[0].pid)
    guardian.watch(0, sleepers[1].pid)
    # what the guardian sees when the trainer dies
    guardian._writer.close()
    assert sleepers[1].wait(5.0) == -signal.SIGKILL
    assert is_alive(sleepers[0].pid)


def test_the_guardian_stays_when_signals_reach_the_whole_terminal(
    guardian: Guardian, sleepers: Any
) -> None:
    guardian.watch(0, sleepers[0].pid)
    pid = guardian._process.pid or 0
    while os.getpgid(pid) != pid:  # it has a group of its own once it is ready for signals
        time.sleep(0.02)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    guardian._writer.close()
    assert sleepers[0].wait(20.0) == -signal.SIGKILL
