"""Environments that play many tasks: which one when, and exactly so after a restore."""

import functools
import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

from metta.curriculum import Task
from metta.envs import MultiprocessVecEnv, SerialVecEnv, make_vec_env
from metta.envs.rows.tasked_env import RowTasks, TaskedEnv
from metta.envs.vec_env import TaskedVecEnv, agents_per_env
from metta.errors import ConfigError, EnvError, StateError
from metta.state_tree import pack_state, unpack_state
from metta.stateful import digest_of
from tests.envs.tasks_and_agents import CountingEnv

NUM_ROWS, NUM_TASKS = 4, 6


def factories(num_tasks: int = NUM_TASKS, has_state: bool = True) -> list[Callable[[], Any]]:
    return [functools.partial(CountingEnv, task, has_state) for task in range(num_tasks)]


BACKENDS: dict[str, Any] = {
    "serial": lambda made: SerialVecEnv(made),
    "serial-2": lambda made: SerialVecEnv(made, 2),
    "multiprocess": lambda made: MultiprocessVecEnv(made, 2, 2),
}
all_backends = pytest.mark.parametrize("backend", BACKENDS)


def opened(backend: str, has_state: bool = True) -> Any:
    return BACKENDS[backend](
        [functools.partial(TaskedEnv, factories(has_state=has_state))] * NUM_ROWS
    )


def choose(vec_env: TaskedVecEnv, env: int) -> None:
    """The next task of an environment, by a rule."""
    vec_env.next_tasks[env] = (3 * vec_env.tasks[env] + env + 1) % NUM_TASKS


def begin(vec_env: TaskedVecEnv) -> dict[str, np.ndarray]:
    obs = vec_env.obs_spec.zeros(NUM_ROWS)
    vec_env.next_tasks[:] = [0, 1, 2, 5]
    vec_env.reset([11, 12, 13, 14], obs)
    for env in range(NUM_ROWS):
        choose(vec_env, env)
    return obs


def play(vec_env: TaskedVecEnv, obs: dict[str, np.ndarray], steps: range) -> list[str]:
    told = []
    size = NUM_ROWS // vec_env.num_groups
    for step in steps:
        for group in range(vec_env.num_groups):
            rows = slice(group * size, (group + 1) * size)
            vec_env.send(group, np.arange(size) % 2 ^ step % 2)
            result = vec_env.recv(group, {"obs": obs["obs"][rows]})
            for row in np.flatnonzero(result.starts):
                choose(vec_env, rows.start + int(row))
            told.append(digest_of([obs["obs"][rows], result.rewards, result.starts]))
    return told


@all_backends
def test_each_episode_is_of_the_task_that_was_next_when_it_began(backend: str) -> None:
    with closing(opened(backend)) as vec_env:
        assert isinstance(vec_env, TaskedVecEnv)
        assert (vec_env.num_tasks, agents_per_env(vec_env)) == (NUM_TASKS, 1)
        obs = begin(vec_env)
        assert obs["obs"][:, 0].tolist() == [0, 1, 2, 5]
        assert vec_env.tasks.tolist() == [0, 1, 2, 5]
        expected, left = [0, 1, 2, 5], [2, 3, 4, 7]
        for step in range(60):
            play(vec_env, obs, range(step, step + 1))
            for env in range(NUM_ROWS):
                left[env] -= 1
                if left[env] == 0:
                    expected[env] = (3 * expected[env] + env + 1) % NUM_TASKS
                    left[env] = expected[env] + 2
            assert obs["obs"][:, 0].tolist() == expected
            assert vec_env.tasks.tolist() == expected


@pytest.mark.parametrize("has_state", [True, False])
@all_backends
def test_steps_and_tasks_are_equal_when_another_one_takes_the_state(
    backend: str, has_state: bool
) -> None:
    with closing(opened(backend, has_state)) as one, closing(opened(backend, has_state)) as other:
        wanted = "snapshot" if has_state else "repeat"
        assert one.prepare_restore().restore_class == wanted
        other.prepare_restore()
        obs = begin(one)
        play(one, obs, range(23))
        tree, tensors = pack_state(one.state_dict())
        state = unpack_state(json.loads(json.dumps(tree)), tensors)
        begin(other)
        seen = other.load_state_dict(state)
        if not has_state:
            np.testing.assert_array_equal(seen["obs"], obs["obs"])
        assert other.tasks.tolist() == one.tasks.tolist()
        assert other.next_tasks.tolist() == one.next_tasks.tolist()
        again = {"obs": obs["obs"].copy()}
        assert play(other, again, range(23, 60)) == play(one, obs, range(23, 60))


@pytest.mark.parametrize("has_state", [True, False])
def test_nothing_is_noticed_when_a_worker_is_killed_in_the_middle_of_tasks(has_state: bool) -> None:
    with closing(opened("multiprocess", has_state)) as one, closing(opened("serial-2")) as other:
        obs, again = begin(one), begin(other)
        told = []
        for step in range(0, 40, 5):
            told += play(one, obs, range(step, step + 5))
            if step in (5, 20):
                os.kill(one.worker_pids[step // 5 % 2], signal.SIGKILL)
        assert told == play(other, again, range(40))
        assert [restart.outcome for restart in one.restarts] == ["exact"] * 2


CHANGES: list[dict[str, Any]] = [
    {"tasks": np.zeros(3, np.int32)},
    {"tasks": np.full(4, 6, np.int32)},
    {"next_tasks": np.full(4, -1, np.int32)},
    {"next_tasks": np.zeros(4)},
    {"tasks": None},
]


@pytest.mark.parametrize(
    ("backend", "change"),
    [*(("serial-2", change) for change in CHANGES), ("multiprocess", CHANGES[1])],
)
def test_a_state_is_refused_when_its_tasks_do_not_fit(backend: str, change: Any) -> None:
    with closing(opened(backend)) as vec_env:
        vec_env.prepare_restore()
        begin(vec_env)
        with pytest.raises(StateError, match="6 tasks"):
            vec_env.load_state_dict(vec_env.state_dict() | change)


def test_few_environments_stay_open_when_many_tasks_are_played() -> None:
    CountingEnv.num_closed = 0
    env = TaskedEnv(factories())
    for task in (1, 2, 3, 1, 4, 5):
        env.begin_task(task)
        assert env.reset(seed=1)[0][0] == task
    assert CountingEnv.num_closed == 2
    env.close()
    env.close()
    assert CountingEnv.num_closed == NUM_TASKS


def test_a_state_names_its_task_when_the_environment_cannot_be_read() -> None:
    factory = functools.partial(TaskedEnv, factories())
    with closing(SerialVecEnv([factory])) as vec_env:
        vec_env.prepare_restore()
        vec_env.reset([1], vec_env.obs_spec.zeros(1))
        state = vec_env.state_dict()
        for env in ({}, {"open": []}, {"open": [[9, {}]]}, {"open": [["one", {}]]}):
            with pytest.raises(StateError, match="row 0 does not fit <task 0 of 6"):
                vec_env.load_state_dict({**state, "rows": [{**state["rows"][0], "env": env}]})
    env = factory()
    assert str(env).startswith("<task 0 of 6")


@all_backends
def test_the_error_names_the_task_when_its_spaces_are_others(backend: str) -> None:
    mixed = [lambda: gymnasium.make("CartPole-v1"), lambda: gymnasium.make("Acrobot-v1")]
    with closing(BACKENDS[backend]([functools.partial(TaskedEnv, mixed)] * NUM_ROWS)) as vec_env:
        vec_env.next_tasks[1] = 1
        with pytest.raises(EnvError, match="task 1 has observations"):
            vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(NUM_ROWS))


def test_an_error_is_raised_when_there_is_no_such_task() -> None:
    with closing(opened("serial")) as vec_env:
        vec_env.next_tasks[2] = 17
        with pytest.raises(EnvError, match="task 17 does not exist; there are 6"):
            vec_env.reset([1, 2, 3, 4], vec_env.obs_spec.zeros(NUM_ROWS))


def test_tasks_become_environments_when_they_are_given_to_the_factory() -> None:
    tasks = [Task("CartPole-v1", {"max_episode_steps": n}, str(n)) for n in (5, 9)]
    with closing(make_vec_env(tasks, num_envs=2)) as vec_env:
        assert isinstance(vec_env, TaskedVecEnv)
        assert vec_env.num_tasks == 2
        vec_env.next_tasks[1] = 1
        obs = vec_env.obs_spec.zeros(2)
        vec_env.reset([1, 2], obs)
        lengths = [0, 0]
        for step in range(1, 10):
            vec_env.send(0, np.array([step % 2] * 2))
            result = vec_env.recv(0, obs)
            for row in np.flatnonzero(result.truncated):
                lengths[row] = lengths[row] or step
        assert lengths == [5, 9]
    with closing(make_vec_env(Task("CartPole-v1"), num_envs=3)) as vec_env:
        assert vec_env.num_rows == 3
    with pytest.raises(ConfigError, match="exists already"):
        make_vec_env([Task(gymnasium.make("CartPole-v1"), label="mine"), tasks[0]])


def test_columns_are_views_when_some_rows_are_looked_at() -> None:
    tasks = RowTasks.allocate(4)
    tasks.part(slice(1, 3)).next[:] = 7
    assert tasks.next.tolist() == [0, 7, 7, 0]
    assert tasks.state()["next_tasks"] is not tasks.next
