import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from metta.envs import MultiprocessVecEnv, SerialVecEnv
from metta.envs.toy import CountdownEnv, MaskedCorridorEnv, NestedEnv
from metta.envs.workers.revival import Revival
from metta.envs.workers.supervision import Restart
from metta.errors import EnvError, MettaWarning
from metta.testing.fault_env import FaultEnv
from tests.envs.faulty_envs import StrangerEnv
from tests.envs.processes import all_gone, is_alive
from tests.envs.stories import told_by

NUM_STEPS = 40


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, list[str]]:
    """The story of four nested environments, by the number of groups."""
    stories = {}
    for num_groups in (1, 2):
        vec_env = SerialVecEnv([NestedEnv] * 4, num_groups)
        stories[num_groups] = told_by(vec_env, NUM_STEPS)
        vec_env.close()
    return stories


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[MultiprocessVecEnv] = []

    def open_it(factories: list[Any], num_workers: int, num_groups: int = 1, **options: Any) -> Any:
        made.append(MultiprocessVecEnv(factories, num_workers, num_groups, **options))
        return made[-1]

    yield open_it
    for vec_env in made:
        vec_env.close()


def outcomes(restarts: list[Restart]) -> list[str]:
    return [restart.outcome for restart in restarts]


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(
    "fault",
    ["exit", "segfault", "kill", "stop", "hang", "freeze", "garbage", "raise", "sys_exit"],
)
def test_the_caller_notices_nothing_when_a_worker_fails(
    fault: Any, num_groups: int, opened: Any, undisturbed: Any, tmp_path: Path
) -> None:
    faulty = partial(FaultEnv, NestedEnv, fault, at_step=23, once_file=tmp_path / "once")
    vec_env = opened(
        [NestedEnv, NestedEnv, NestedEnv, faulty],
        2,
        num_groups,
        step_timeout_seconds=0.5,
        on_env_error="restart",
    )
    assert told_by(vec_env, NUM_STEPS) == undisturbed[num_groups]
    assert outcomes(vec_env.restarts) == ["exact"]
    assert vec_env.restarts[0].failure.rows == ((2, 3) if num_groups == 1 else (1, 3))
    assert (tmp_path / "once").exists()
    assert vec_env.num_lost_rows == 0


def test_the_caller_notices_nothing_when_all_workers_die_again_and_again(
    opened: Any, undisturbed: Any
) -> None:
    vec_env = opened([NestedEnv] * 4, 2, 2, max_worker_restarts=40)

    def kill_all(step: int, group: int) -> None:
        if step % 8 == 7:
            for pid in vec_env.worker_pids:
                # not noticed yet where its answers had come before it died
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    assert told_by(vec_env, NUM_STEPS, before_recv=kill_all) == undisturbed[2]
    assert set(outcomes(vec_env.restarts)) == {"exact"}
    assert len(vec_env.restarts) >= 2 * 4
    assert isinstance(vec_env._revival, Revival)


def test_the_caller_notices_nothing_when_an_answer_had_come_before_the_death(
    opened: Any, undisturbed: Any
) -> None:
    vec_env = opened([NestedEnv] * 4, 1, 2)

    def kill_after_answering(step: int, group: int) -> None:
        if (step, group) == (9, 0):
            time.sleep(0.2)
            os.kill(vec_env.worker_pids[0], signal.SIGKILL)

    assert told_by(vec_env, NUM_STEPS, before_recv=kill_after_answering) == undisturbed[2]
    assert outcomes(vec_env.restarts) == ["exact"]


def test_masks_come_back_too_when_a_worker_dies(opened: Any) -> None:
    class Timid(gymnasium.ActionWrapper):
        """Every action is replaced by a legal one."""

        def action(self, action: int) -> int:
            legal = np.flatnonzero(self.unwrapped.legal())
            return int(legal[action % len(legal)])

    def make() -> Any:
        return Timid(MaskedCorridorEnv(max_steps=15))

    serial = SerialVecEnv([make] * 2)
    vec_env = opened([make] * 2, 2)

    def kill(step: int, group: int) -> None:
        if step == 20:
            os.kill(vec_env.worker_pids[1], signal.SIGKILL)

    assert told_by(vec_env, NUM_STEPS, before_recv=kill) == told_by(serial, NUM_STEPS)
    assert outcomes(vec_env.restarts) == ["exact"]
    serial.close()


def test_the_caller_notices_nothing_when_the_new_process_dies_before_it_is_ready(
    opened: Any, undisturbed: Any, tmp_path: Path
) -> None:
    def make() -> Any:
        # dies once, where it is made for a worker that is started again
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "die").unlink()
            os._exit(3)
        return NestedEnv()

    vec_env = opened([NestedEnv, NestedEnv, NestedEnv, make], 2)

    def kill(step: int, group: int) -> None:
        if step == 20:
            (tmp_path / "die").touch()
            os.kill(vec_env.worker_pids[1], signal.SIGSTOP)
            os.kill(vec_env.worker_pids[1], signal.SIGKILL)

    assert told_by(vec_env, NUM_STEPS, before_recv=kill) == undisturbed[1]
    assert outcomes(vec_env.restarts) == ["failed again", "exact"]


def test_a_reset_is_repeated_when_a_worker_dies_in_it(
    opened: Any, undisturbed: Any, tmp_path: Path
) -> None:
    faulty = partial(FaultEnv, NestedEnv, "kill", at_step=0, once_file=tmp_path / "once")
    # row 0 is reset once when it is made, to see whether it gives masks
    vec_env = opened([NestedEnv, NestedEnv, faulty, NestedEnv], 2)
    assert told_by(vec_env, NUM_STEPS) == undisturbed[1]
    assert outcomes(vec_env.restarts) == ["exact"]


def test_a_reset_goes_on_when_a_worker_dies_in_the_step_that_it_drops(
    opened: Any, undisturbed: Any
) -> None:
    vec_env = opened([NestedEnv] * 4, 2, 2)
    told_by(vec_env, 3)
    for group in (0, 1):
        vec_env.send(group, np.zeros(2, np.int64))
    os.kill(vec_env.worker_pids[1], signal.SIGKILL)
    assert told_by(vec_env, NUM_STEPS) == undisturbed[2]
    assert len(vec_env.restarts) == 1


def test_environments_of_the_process_end_with_it_when_a_worker_is_killed(
    opened: Any, tmp_path: Path
) -> None:
    class Parent(CountdownEnv):
        """Has a child process, like a simulator of its own."""

        def step(self, action: int) -> Any:
            if self.steps == 1:
                child = os.fork()
                if not child:
                    time.sleep(60)
                    os._exit(0)
                (tmp_path / "child").write_text(str(child))
                signal.raise_signal(signal.SIGSTOP)
            return super().step(action)

    vec_env = opened([Parent], 1, step_timeout_seconds=0.3, max_worker_restarts=0)
    with pytest.raises(EnvError, match="did not answer"):
        told_by(vec_env, 2)
    assert all_gone([int((tmp_path / "child").read_text())])


def play(vec_env: Any, num_steps: int) -> list[Any]:
    """The results of steps of all groups, one after another, with copies of their arrays."""
    size, results = vec_env.num_rows // vec_env.num_groups, []
    obs = vec_env.obs_spec.zeros(size)
    for _ in range(num_steps):
        for group in range(vec_env.num_groups):
            vec_env.send(group, np.zeros(size, np.int64))
            result = vec_env.recv(group, obs)
            results.append((obs["obs"].ravel().tolist(), result.rewards.tolist(), result.lost))
    return results


def test_fresh_episodes_begin_when_the_observation_is_another_one(opened: Any) -> None:
    vec_env = opened([CountdownEnv, StrangerEnv, CountdownEnv, CountdownEnv], 2)
    obs = vec_env.obs_spec.zeros(4)
    vec_env.reset([1, 2, 3, 4], obs)
    vec_env.send(0, np.zeros(4, np.int64))
    vec_env.recv(0, obs)
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    vec_env.send(0, np.zeros(4, np.int64))
    lost = r"(?s)rows 0, 1 are lost.*exit code -9.*showed other observations"
    with pytest.warns(MettaWarning, match=lost) as caught:
        result = vec_env.recv(0, obs)
    assert len(caught) == 1
    assert result.lost.tolist() == [0, 1]
    assert result.lost.dtype == np.int64
    assert result.rewards.tolist() == [0.0, 0.0, 2.0, 2.0]
    assert result.valid.tolist() == [False, False, True, True]
    assert result.starts.tolist() == [True, True, False, False]
    assert not (result.terminated | result.truncated).any()
    assert obs["obs"][[0, 2]].ravel().tolist() == [0.0, 2.0]
    assert vec_env.num_lost_rows == 2
    vec_env.send(0, np.zeros(4, np.int64))
    result = vec_env.recv(0, obs)
    assert result.lost is None
    assert result.valid.all()
    assert result.rewards.tolist() == [1.0, 1.0, 3.0, 3.0]


def test_the_next_step_is_lost_when_a_group_had_none_under_way(opened: Any) -> None:
    vec_env = opened([StrangerEnv] * 4, 2, 2)
    vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(4))
    first, second = vec_env.obs_spec.zeros(2), vec_env.obs_spec.zeros(2)
    for group, obs in enumerate((first, second)):
        vec_env.send(group, np.zeros(2, np.int64))
        held = vec_env.recv(group, obs)
    # the caller still reads the results of group 1 when the worker dies in a step of group 0
    os.kill(vec_env.worker_pids[1], signal.SIGKILL)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.warns(MettaWarning, match="rows 1, 3 are lost"):
        result = vec_env.recv(0, first)
    assert result.lost.tolist() == [1]
    assert held.rewards.tolist() == [1.0, 1.0]
    assert not held.starts.any()
    vec_env.send(1, np.zeros(2, np.int64))
    result = vec_env.recv(1, second)
    assert result.lost.tolist() == [1]
    assert result.valid.tolist() == [True, False]
    assert result.rewards.tolist() == [2.0, 0.0]
    assert vec_env.num_lost_rows == 2
    assert [lost for _, _, lost in play(vec_env, 2)] == [None] * 4


def test_no_row_is_lost_any_more_when_all_are_reset(opened: Any) -> None:
    vec_env = opened([StrangerEnv] * 4, 2, 2)
    vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(4))
    play(vec_env, 1)
    os.kill(vec_env.worker_pids[1], signal.SIGKILL)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.warns(MettaWarning, match="rows 1, 3 are lost"):
        vec_env.recv(0, vec_env.obs_spec.zeros(2))
    vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(4))
    assert [(rewards, lost) for _, rewards, lost in play(vec_env, 1)] == [([1.0, 1.0], None)] * 2


def test_results_stay_as_they_are_when_another_group_brings_the_worker_back(opened: Any) -> None:
    vec_env = opened([CountdownEnv] * 4, 1, 2)
    vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(4))
    obs = vec_env.obs_spec.zeros(2)
    for _ in range(5):
        vec_env.send(1, np.zeros(2, np.int64))
        held = vec_env.recv(1, obs)
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    vec_env.send(0, np.zeros(2, np.int64))
    vec_env.recv(0, vec_env.obs_spec.zeros(2))
    assert outcomes(vec_env.restarts) == ["exact"]
    assert held.rewards.tolist() == [5.0, 5.0]
    assert held.terminated.all()
    assert held.starts.all()
    assert obs["obs"].ravel().tolist() == [0.0, 0.0]


def test_fresh_episodes_begin_when_an_episode_kills_its_worker_every_time(opened: Any) -> None:
    class Deadly(FaultEnv):
        """Dies in the third step of episodes whose seed is the given one."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.at_step = 3 if seed == 7 else None
            return super().reset(seed=seed, options=options)

    vec_env = opened([partial(Deadly, CountdownEnv, "segfault", in_episode=True), CountdownEnv], 1)
    vec_env.reset([7, 8], vec_env.obs_spec.zeros(2))
    assert [lost for _, _, lost in play(vec_env, 2)] == [None, None]
    with pytest.warns(MettaWarning, match=r"(?s)exit code -11.*failed again when its episodes"):
        [(obs, rewards, lost)] = play(vec_env, 1)
    assert (obs, rewards, lost.tolist()) == ([0.0, 0.0], [0.0, 0.0], [0, 1])
    assert outcomes(vec_env.restarts) == ["failed again", "lost"]
    assert [rewards for _, rewards, _ in play(vec_env, 3)] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_fresh_episodes_begin_when_repeating_raises(opened: Any, tmp_path: Path) -> None:
    class Moody(CountdownEnv):
        """Raises in its second step where it lives in a worker that was started again."""

        def step(self, action: int) -> Any:
            if self.steps == 1 and (tmp_path / "dead").exists():
                raise ValueError("not in the mood")
            return super().step(action)

    vec_env = opened([Moody], 1)
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
    play(vec_env, 3)
    (tmp_path / "dead").touch()
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    with pytest.warns(MettaWarning, match="not in the mood"):
        [(_, _, lost)] = play(vec_env, 1)
    assert lost.tolist() == [0]
    (tmp_path / "dead").unlink()
    assert [rewards for _, rewards, _ in play(vec_env, 2)] == [[1.0], [2.0]]


def test_fresh_episodes_begin_when_repeating_hangs(opened: Any, tmp_path: Path) -> None:
    class Sleepy(CountdownEnv):
        """Hangs in its second step, once, where it lives in a worker that was started again."""

        def step(self, action: int) -> Any:
            if self.steps == 1 and (tmp_path / "dead").exists():
                (tmp_path / "dead").unlink()
                time.sleep(600)
            return super().step(action)

    vec_env = opened([Sleepy], 1, start_timeout_seconds=5.0)
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
    play(vec_env, 3)
    (tmp_path / "dead").touch()
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    with pytest.warns(MettaWarning, match="failed again when its episodes"):
        [(_, _, lost)] = play(vec_env, 1)
    assert lost.tolist() == [0]
    assert outcomes(vec_env.restarts) == ["failed again", "lost"]


def test_a_long_episode_is_repeated_when_it_takes_longer_than_a_start(opened: Any) -> None:
    class Slow(CountdownEnv):
        def step(self, action: int) -> Any:
            time.sleep(0.4)
            return super().step(action)

    # repeating nine steps takes longer than either limit
    vec_env = opened([partial(Slow, 99)], 1, start_timeout_seconds=3.0, step_timeout_seconds=3.0)
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
    play(vec_env, 9)
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    assert play(vec_env, 1) == [([10.0], [10.0], None)]
    assert outcomes(vec_env.restarts) == ["exact"]


def test_all_workers_stop_when_the_budget_is_spent(opened: Any) -> None:
    doomed = partial(FaultEnv, CountdownEnv, "exit", probability=1.0)
    vec_env = opened([CountdownEnv, doomed], 2, max_worker_restarts=2)
    pids = vec_env.worker_pids
    vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    with pytest.warns(MettaWarning, match="rows 1 are lost"):
        play(vec_env, 1)
    with pytest.raises(EnvError) as caught:
        play(vec_env, 1)
    message = str(caught.value)
    assert f"worker 1 (pid {vec_env.worker_pids[1]}, rows 1) died with exit code 3" in message
    assert "2 restarts" in message
    assert "raise max_worker_restarts" in message
    assert not any(is_alive(pid) for pid in [*pids, *vec_env.worker_pids])
    with pytest.raises(EnvError, match="closed"):
        vec_env.send(0, np.zeros(2, np.int64))
    vec_env.close()


def test_an_error_ends_the_run_when_it_is_not_to_be_survived(opened: Any) -> None:
    vec_env = opened([partial(FaultEnv, CountdownEnv, "raise", at_step=2)], 1)
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
    with pytest.raises(EnvError, match=r"(?s)step 2: InjectedFaultError.*in _misbehave"):
        play(vec_env, 2)
    assert vec_env.restarts == []


def test_errors_count_as_deaths_when_they_are_to_be_survived(opened: Any) -> None:
    faulty = partial(FaultEnv, CountdownEnv, "raise", probability=1.0)
    vec_env = opened([faulty], 1, on_env_error="restart", max_worker_restarts=2)
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
    with pytest.warns(MettaWarning, match=r"(?s)fails on purpose.*original traceback"):
        play(vec_env, 1)
    with pytest.raises(EnvError, match=r"(?s)original traceback.*2 restarts"):
        play(vec_env, 1)
