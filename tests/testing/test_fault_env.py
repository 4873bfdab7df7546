import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest

from metta.envs import MultiprocessVecEnv, SerialVecEnv
from metta.envs.toy import CountdownEnv, NestedEnv
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, EnvError
from metta.testing import FaultEnv, InjectedFaultError
from metta.testing.fault_env import Fault, ProcessFault, ReplyFault

REPLY_FAULTS = get_args(ReplyFault)
PROCESS_FAULTS = get_args(ProcessFault)
HARMLESS = {
    # read only where an episode ends
    "no_info",
    "slow",
}


def play(vec_env: VecEnv, num_steps: int) -> None:
    obs = vec_env.obs_spec.zeros(vec_env.num_rows)
    vec_env.reset(range(vec_env.num_rows), obs)
    for _ in range(num_steps):
        vec_env.send(0, np.zeros(vec_env.num_rows, np.int64))
        vec_env.recv(0, obs)


def error_of(vec_env: VecEnv, num_steps: int) -> str:
    try:
        play(vec_env, num_steps)
    except EnvError as error:
        return str(error)
    finally:
        vec_env.close()
    return ""


@pytest.mark.parametrize("world", [CountdownEnv, NestedEnv])
def test_errors_are_the_same_when_environments_live_in_workers(world: Any) -> None:
    faults = [*REPLY_FAULTS, "raise", "slow"]
    rows = [world, world, world, partial(FaultEnv, world, faults[0], at_step=3, seconds=0.01)]
    for fault in faults:
        rows[3] = partial(FaultEnv, world, fault, at_step=3, seconds=0.01)
        serial = error_of(SerialVecEnv(rows), 4)
        workers = error_of(MultiprocessVecEnv(rows, 2), 4)
        message, _, origin = workers.partition("\nin worker 1 ")
        assert message == serial, fault
        assert bool(serial) == (fault not in HARMLESS), fault
        if serial:
            assert re.search(r"row 3\b.* at step 3", serial), (fault, serial)
            assert re.match(r"\(pid \d+, rows 2, 3\); original traceback:\nTraceback", origin)


def test_an_end_is_named_when_info_is_missing_there() -> None:
    at_the_end = partial(FaultEnv, CountdownEnv, "no_info", at_step=5)
    for vec_env in (SerialVecEnv([at_the_end]), MultiprocessVecEnv([at_the_end], 1)):
        assert re.search(r"row 0 .*failed at step 5: ", error_of(vec_env, 6))


@pytest.mark.parametrize("fault", ["nan_obs", "inf_obs", "wrong_shape", "text_obs", "no_info"])
def test_resets_misbehave_when_the_step_is_zero(fault: Any) -> None:
    env = FaultEnv(CountdownEnv, fault, at_step=0)
    good = CountdownEnv().reset(seed=1)
    assert repr(env.reset(seed=1)) != repr(good)
    env.step(0)
    assert repr(env.reset(seed=1)) == repr(good)
    every_time = FaultEnv(CountdownEnv, fault, at_step=0, in_episode=True)
    for _ in range(2):
        assert repr(every_time.reset(seed=1)) != repr(good)
        every_time.step(0)


def test_only_steps_have_rewards_to_spoil_when_a_reset_is_due() -> None:
    assert FaultEnv(CountdownEnv, "no_reward", at_step=0).reset()[1] == {}


def faulty_steps(env: FaultEnv, num_steps: int) -> list[int]:
    """Which steps raised."""
    env.reset(seed=0)
    found = []
    for step in range(1, num_steps + 1):
        try:
            over = any(env.step(0)[2:4])
        except InjectedFaultError:
            found.append(step)
            over = False
        if over:
            env.reset()
    return found


def test_it_happens_at_the_step_when_one_is_given(tmp_path: Path) -> None:
    make = partial(FaultEnv, partial(CountdownEnv, 4), "raise")
    assert faulty_steps(make(at_step=6), 20) == [6]
    assert faulty_steps(make(at_step=2, in_episode=True), 12) == [2, 6, 10]
    assert faulty_steps(make(), 20) == []
    assert faulty_steps(make(probability=1.0), 3) == [1, 2, 3]
    by_chance = faulty_steps(make(probability=0.2, seed=4), 60)
    assert 3 < len(by_chance) < 30
    assert faulty_steps(make(probability=0.2, seed=4), 60) == by_chance
    assert faulty_steps(make(probability=0.2, seed=5), 60) != by_chance


def test_it_happens_once_when_there_is_a_file_for_it(tmp_path: Path) -> None:
    make = partial(FaultEnv, CountdownEnv, "raise", at_step=2, once_file=str(tmp_path / "once"))
    begin = time.monotonic()
    assert faulty_steps(make(), 5) == [2]
    pid, when = (tmp_path / "once").read_text().split()
    assert int(pid) == os.getpid()
    assert begin <= float(when) <= time.monotonic()
    assert faulty_steps(make(), 5) == []


@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_the_trainer_lives_on_when_faults_are_for_workers(fault: Any, tmp_path: Path) -> None:
    env = FaultEnv(CountdownEnv, fault, at_step=1, once_file=tmp_path / "once")
    env.reset()
    assert env.step(0)[1] == 1.0
    assert not (tmp_path / "once").exists()


def test_it_is_slow_when_that_is_the_fault() -> None:
    env = FaultEnv(CountdownEnv, "slow", at_step=1, seconds=0.2)
    env.reset()
    begin = time.monotonic()
    assert env.step(0)[1] == 1.0
    assert time.monotonic() - begin >= 0.2


def test_it_exits_when_that_is_the_fault() -> None:
    env = FaultEnv(CountdownEnv, "sys_exit", at_step=1)
    env.reset()
    with pytest.raises(SystemExit):
        env.step(0)


@pytest.mark.parametrize(
    "inner", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")]
)
def test_the_environment_is_as_always_when_no_fault_is_due(inner: Any) -> None:
    env, plain = FaultEnv(inner, "raise"), gymnasium.make("CartPole-v1")
    assert env.observation_space == plain.observation_space
    assert env.reset(seed=3)[0].tolist() == plain.reset(seed=3)[0].tolist()
    for action in (0, 1, 1):
        ours, theirs = env.step(action), plain.step(action)
        assert ours[0].tolist() == theirs[0].tolist()
        assert ours[1:] == theirs[1:]


def test_other_faults_are_refused_when_they_are_not_known() -> None:
    with pytest.raises(ConfigError, match=r"no fault 'segfalt'; did you mean 'segfault'\?"):
        FaultEnv(CountdownEnv, "segfalt")  # type: ignore[arg-type]
    assert {part for kind in get_args(Fault) for part in get_args(kind)} >= {"raise", "exit"}
