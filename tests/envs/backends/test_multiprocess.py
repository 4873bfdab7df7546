import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta.envs import MultiprocessVecEnv
from metta.envs.toy import CountdownEnv
from metta.errors import ConfigError, EnvError
from tests.envs.faulty_envs import FaultyEnv, OtherSpaceEnv, SimulatorError, WorldEnv
from tests.envs.processes import all_gone, is_alive


@contextlib.contextmanager
def opened(*factories: Any, num_workers: int = 2, **options: Any) -> Iterator[MultiprocessVecEnv]:
    """Without restarts: what workers do when they fail is then seen at once."""
    vec_env = MultiprocessVecEnv(factories, num_workers, **{"max_worker_restarts": 0, **options})
    try:
        yield vec_env
    finally:
        vec_env.close()


def run(vec_env: MultiprocessVecEnv, num_steps: int) -> Any:
    obs = vec_env.obs_spec.zeros(vec_env.num_rows)
    result = vec_env.reset(range(vec_env.num_rows), obs)
    for _ in range(num_steps):
        vec_env.send(0, np.zeros(vec_env.num_rows, np.int64))
        result = vec_env.recv(0, obs)
    return result


def test_the_original_traceback_is_kept_when_an_environment_raises() -> None:
    with opened(CountdownEnv, CountdownEnv, CountdownEnv, partial(FaultyEnv, "raise")) as vec_env:
        pids = vec_env.worker_pids
        with pytest.raises(EnvError) as caught:
            run(vec_env, 3)
        message = str(caught.value)
        assert "row 3 " in message
        assert "failed at step 3" in message
        assert f"worker 1 (pid {pids[1]}, rows 2, 3)" in message
        assert 'raise SimulatorError("the simulator lost its mind")' in message
        assert all_gone(pids, 0)
        with pytest.raises(EnvError, match="closed"):
            vec_env.send(0, np.zeros(4, np.int64))


def test_the_row_is_named_when_reset_raises() -> None:
    with (
        opened(CountdownEnv, partial(FaultyEnv, "raise", at=0)) as vec_env,
        pytest.raises(EnvError, match=r"row 1 failed in reset\(seed=1\): SimulatorError"),
    ):
        run(vec_env, 0)


def test_an_exit_is_an_error_when_an_environment_calls_sys_exit() -> None:
    with (
        opened(CountdownEnv, partial(FaultyEnv, "sys_exit")) as vec_env,
        pytest.raises(EnvError, match=r"SystemExit: 5"),
    ):
        run(vec_env, 3)


def test_the_error_is_told_when_its_worker_is_gone_before_the_next_command() -> None:
    factories = [partial(FaultyEnv, "raise", at=1)] * 2
    with opened(*factories, num_workers=1, num_groups=2) as vec_env:
        vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
        vec_env.send(0, np.zeros(1, np.int64))
        assert all_gone(vec_env.worker_pids)
        vec_env.send(1, np.zeros(1, np.int64))
        with pytest.raises(EnvError, match="lost its mind"):
            vec_env.recv(1, vec_env.obs_spec.zeros(1))


@pytest.mark.parametrize(("fault", "code"), [("exit", 3), ("kill", -9), ("segfault", -11)])
def test_a_death_is_noticed_when_a_worker_ends(fault: str, code: int) -> None:
    with opened(CountdownEnv, partial(FaultyEnv, fault)) as vec_env:
        run(vec_env, 2)
        pids = vec_env.worker_pids
        vec_env.send(0, np.zeros(2, np.int64))
        with pytest.raises(EnvError, match=rf"worker 1 \(pid {pids[1]}.*exit code {code}"):
            vec_env.recv(0, vec_env.obs_spec.zeros(2))
        assert all_gone(pids, 0)


def test_a_death_is_noticed_when_a_child_of_the_worker_lives_on() -> None:
    with opened(CountdownEnv, partial(FaultyEnv, "exit_with_child", at=1)) as vec_env:
        obs = vec_env.obs_spec.zeros(2)
        vec_env.reset([1, 2], obs)
        vec_env.send(0, np.zeros(2, np.int64))
        with pytest.raises(EnvError, match=r"worker 1 .*exit code 3"):
            vec_env.recv(0, obs)


def test_a_death_is_noticed_when_another_worker_is_still_busy() -> None:
    busy, dying = partial(FaultyEnv, "hang", at=1), partial(FaultyEnv, "exit", at=1)
    with (
        opened(busy, dying) as vec_env,
        pytest.raises(EnvError, match=r"worker 1 .*exit code 3"),
    ):
        run(vec_env, 1)


def test_a_death_is_noticed_when_it_comes_between_steps() -> None:
    with opened(CountdownEnv, CountdownEnv) as vec_env:
        run(vec_env, 1)
        os.kill(vec_env.worker_pids[0], signal.SIGKILL)
        all_gone(vec_env.worker_pids[:1])
        with pytest.raises(EnvError, match=r"worker 0 .*exit code -9"):
            run(vec_env, 1)


@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_a_worker_is_killed_when_it_does_not_answer_in_time(fault: str) -> None:
    with opened(CountdownEnv, partial(FaultyEnv, fault), step_timeout_seconds=0.2) as vec_env:
        pids = vec_env.worker_pids
        with pytest.raises(EnvError, match=r"worker 1 .*within 0.2 s.*raise step_timeout_seconds"):
            run(vec_env, 3)
        assert all_gone(pids, 0)


def test_slow_construction_is_no_hang_when_only_steps_are_short() -> None:
    def slow() -> Any:
        time.sleep(0.5)
        return CountdownEnv()

    with opened(slow, slow, step_timeout_seconds=0.3) as vec_env:
        run(vec_env, 1)


def test_construction_is_given_up_when_it_takes_too_long() -> None:
    made_here = os.getpid()

    def slow() -> Any:
        if os.getpid() != made_here:
            time.sleep(600)
        return CountdownEnv()

    with pytest.raises(EnvError, match=r"within 0.3 s.*raise start_timeout_seconds"):
        MultiprocessVecEnv([slow], 1, start_timeout_seconds=0.3)


def test_the_error_comes_home_when_an_environment_cannot_be_made_in_the_worker() -> None:
    made_here = os.getpid()

    def picky() -> Any:
        if os.getpid() != made_here:
            raise SimulatorError("no display")
        return CountdownEnv()

    with pytest.raises(
        EnvError, match=r"(?s)row 0 could not be made: SimulatorError: no display.*"
    ):
        MultiprocessVecEnv([picky], 1)


def test_spaces_are_refused_when_rows_differ() -> None:
    with pytest.raises(EnvError, match=r"(?s)row 1 has .*Discrete\(3\), but row 0 has"):
        MultiprocessVecEnv([CountdownEnv, OtherSpaceEnv], 2)


def test_no_process_is_left_when_closed() -> None:
    with opened(CountdownEnv, CountdownEnv) as vec_env:
        pids = vec_env.worker_pids
        assert all(is_alive(pid) for pid in pids)
    assert all_gone(pids, 0)


def test_the_error_comes_home_when_the_trainers_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "deleted")
    with pytest.raises(EnvError, match="FileNotFoundError"):
        MultiprocessVecEnv([CountdownEnv], 1)


def test_no_process_is_left_when_a_worker_hangs_in_close() -> None:
    vec_env = MultiprocessVecEnv([CountdownEnv], 1)
    os.kill(vec_env.worker_pids[0], signal.SIGSTOP)
    pids = vec_env.worker_pids
    vec_env._pool.stop(grace_seconds=0.1)
    assert all_gone(pids, 0)
    vec_env.close()


def test_no_process_is_left_when_the_object_is_forgotten() -> None:
    vec_env = MultiprocessVecEnv([CountdownEnv], 1)
    pids = vec_env.worker_pids
    del vec_env
    gc.collect()
    assert all_gone(pids, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_go_on_when_a_terminal_or_batch_system_signals_every_process(number: int) -> None:
    with opened(CountdownEnv, num_workers=1) as vec_env:
        os.kill(vec_env.worker_pids[0], number)
        assert run(vec_env, 2).rewards.tolist() == [2.0]


def test_workers_live_in_the_trainers_world_when_it_changed_after_the_fork_server_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("METTA_TEST_MARKER", "42")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with opened(WorldEnv, WorldEnv) as vec_env:
        infos = dict(run(vec_env, 1).infos)
        assert [infos[row]["pid"] for row in (0, 1)] == vec_env.worker_pids
        for row in (0, 1):
            assert infos[row]["marker"] == 42
            assert infos[row]["threads"] == 1
            assert infos[row]["main_is_bare"]


def test_workers_spawn_when_there_is_no_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with opened(CountdownEnv, partial(FaultyEnv, "exit"), num_workers=2) as vec_env:
        assert run(vec_env, 2).rewards.tolist() == [2.0, 2.0]
        with pytest.raises(EnvError, match="exit code 3"):
            run(vec_env, 3)


def test_infos_come_in_the_order_of_rows_when_workers_answer_in_any_order() -> None:
    class LatestFirst(CountdownEnv):
        def __init__(self, row: int) -> None:
            super().__init__(length=1)
            self.row = row

        def step(self, action: int) -> Any:
            time.sleep(0.02 * (3 - self.row))
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"row": self.row}

    factories = [partial(LatestFirst, row) for row in range(4)]
    with opened(*factories, num_workers=4) as vec_env:
        assert run(vec_env, 1).infos == [(row, {"row": float(row)}) for row in range(4)]


def test_long_infos_arrive_whole_when_they_exceed_a_pipe() -> None:
    class Talkative(CountdownEnv):
        def step(self, action: int) -> Any:
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {f"n{i}": i for i in range(20_000)}

    with opened(partial(Talkative, 1), partial(Talkative, 1)) as vec_env:
        for _, numbers in run(vec_env, 1).infos:
            assert numbers == {f"n{i}": float(i) for i in range(20_000)}


@pytest.mark.parametrize("num_workers", [0, 3])
def test_workers_are_refused_when_a_group_has_fewer_rows(num_workers: int) -> None:
    with pytest.raises(ConfigError, match=r"try num_workers=[12] or num_envs="):
        MultiprocessVecEnv([CountdownEnv] * 4, num_workers, num_groups=2)


TRAINER = """
import sys, time, weakref

class Early:
    pass

# the exit hook of weakref now runs after multiprocessing's, which waits for all workers
early = Early()
weakref.finalize(early, int)

import numpy as np
from metta.envs import MultiprocessVecEnv
from metta.envs.toy import CountdownEnv

class Sleeper(CountdownEnv):
    def step(self, action):
        if {hang}:
            time.sleep(600)
        assert "torch" not in sys.modules, "a worker takes seconds to start"
        return super().step(action)

vec_env = MultiprocessVecEnv([CountdownEnv, Sleeper], 2)
obs = vec_env.obs_spec.zeros(2)
vec_env.reset([1, 2], obs)
vec_env.send(0, np.zeros(2, np.int64))
print(*vec_env.worker_pids, flush=True)
if {hang}:
    time.sleep(600)
vec_env.recv(0, obs)
print(obs["obs"].ravel().tolist())
"""


def _start_trainer(tmp_path: Path, *, hang: bool) -> "subprocess.Popen[str]":
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER.format(hang=hang))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)


def _memory_of(pid: int) -> str:
    """The lines of a process's memory map that are multiprocessing's shared arrays."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return "\n".join(line for line in maps if f"pym-{pid}-" in line)


def test_no_process_and_no_shared_memory_is_left_when_the_trainer_is_killed(tmp_path: Path) -> None:
    with _start_trainer(tmp_path, hang=True) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        # one waits for a command, the other is inside a step
        assert all(is_alive(pid) for pid in pids)
        assert "(deleted)" in _memory_of(trainer.pid)
        trainer.kill()
    assert all_gone(pids)
    assert list(Path("/dev/shm").glob(f"*{trainer.pid}*")) == []


def test_a_script_ends_when_it_has_neither_main_guard_nor_close(tmp_path: Path) -> None:
    with _start_trainer(tmp_path, hang=False) as trainer:
        output, _ = trainer.communicate(timeout=20)
    assert trainer.returncode == 0
    pids, observations = output.splitlines()
    assert observations == "[1.0, 1.0]"
    assert all_gone([int(pid) for pid in pids.split()])
