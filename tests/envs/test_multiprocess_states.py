"""States of `MultiprocessVecEnv`: the same as `SerialVecEnv`'s, also where workers die around them."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from faults.saved_envs import GivesState, SavedCountdown, SavedNested
from metta.envs import MultiprocessVecEnv, SerialVecEnv
from metta.envs.toy import CountdownEnv
from metta.envs.vec_env import RestorableVecEnv
from metta.errors import EnvError, MettaWarning
from metta.stateful import digest_of
from tests.envs.faulty_envs import StrangerEnv
from tests.envs.stories import told_by

CUT, AFTER = 17, 23
Open = Callable[..., Any]


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[Any] = []

    def open_it(
        factories: list[Any], num_workers: int = 2, num_groups: int = 2, **options: Any
    ) -> Any:
        if num_workers:
            made.append(MultiprocessVecEnv(factories, num_workers, num_groups, **options))
        else:
            made.append(SerialVecEnv(factories, num_groups))
        return made[-1]

    yield open_it
    for vec_env in made:
        vec_env.close()


@pytest.fixture(params=["snapshot", "repeat"])
def wanted(request: pytest.FixtureRequest) -> Any:
    return request.param


def to_the_cut(vec_env: Any, wanted: Any) -> dict[str, Any]:
    vec_env.prepare_restore(wanted)
    told_by(vec_env, CUT)
    state: dict[str, Any] = vec_env.state_dict()
    assert state["class"] == wanted
    return state


def test_states_are_equal_when_only_the_backend_differs(opened: Open, wanted: Any) -> None:
    serial, workers = opened([SavedNested] * 4, 0), opened([SavedNested] * 4)
    assert isinstance(workers, RestorableVecEnv)
    states = [to_the_cut(vec_env, wanted) for vec_env in (serial, workers)]
    assert digest_of(states[0]) == digest_of(states[1])


@pytest.mark.parametrize("num_workers", [(0, 2), (2, 0), (2, 1)])
def test_rows_go_on_alike_when_another_backend_takes_the_state(
    opened: Open, wanted: Any, num_workers: tuple[int, int]
) -> None:
    first, second = (opened([SavedNested] * 4, number) for number in num_workers)
    state = to_the_cut(first, wanted)
    seen = second.load_state_dict(state)
    assert (seen is None) == (wanted == "snapshot")
    assert told_by(second, AFTER, resets=False) == told_by(first, AFTER, resets=False)
    assert second.num_resets == 0


@pytest.mark.parametrize("die_at", [0, 1, AFTER - 1])
def test_rows_go_on_alike_when_a_worker_dies_after_the_state_was_taken(
    opened: Open, wanted: Any, die_at: int
) -> None:
    serial, workers = opened([SavedNested] * 4, 0), opened([SavedNested] * 4)
    workers.load_state_dict(to_the_cut(serial, wanted))

    def kill(step: int, group: int) -> None:
        if (step, group) == (die_at, 0):
            os.kill(workers.worker_pids[1], signal.SIGKILL)

    told = told_by(workers, AFTER, resets=False, before_recv=kill)
    # an answer that came before the death in the last step is as good as any
    told += told_by(workers, 3, resets=False)
    assert told == told_by(serial, AFTER, resets=False) + told_by(serial, 3, resets=False)
    assert [restart.outcome for restart in workers.restarts] == ["exact"]


def test_the_state_is_the_same_when_a_worker_is_dead_as_it_is_asked_for(
    opened: Open, wanted: Any
) -> None:
    vec_env = opened([SavedNested] * 4)
    state = to_the_cut(vec_env, wanted)
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    assert digest_of(vec_env.state_dict()) == digest_of(state)
    # what the trainer kept is enough for a repetition; a snapshot must come from the environments
    assert len(vec_env.restarts) == (1 if wanted == "snapshot" else 0)


def test_the_state_is_taken_when_a_worker_is_dead_as_it_is_given(opened: Open, wanted: Any) -> None:
    vec_env, other = opened([SavedNested] * 4), opened([SavedNested] * 4)
    state = to_the_cut(vec_env, wanted)
    os.kill(other.worker_pids[1], signal.SIGKILL)
    other.load_state_dict(state)
    assert len(other.restarts) == 1
    assert told_by(other, AFTER, resets=False) == told_by(vec_env, AFTER, resets=False)


def test_a_step_under_way_is_dropped_when_a_state_is_taken(opened: Open, wanted: Any) -> None:
    vec_env = opened([SavedNested] * 4)
    state = to_the_cut(vec_env, wanted)
    told = told_by(vec_env, AFTER, resets=False)
    vec_env.send(1, np.zeros(2, np.int64))
    vec_env.load_state_dict(state)
    # a worker that is started again would repeat it otherwise
    assert vec_env._pool.steps_under_way == []
    assert told_by(vec_env, AFTER, resets=False) == told


class SavedStranger(GivesState, StrangerEnv):
    """Shows something else in every process."""


def test_a_boundary_is_saved_when_rows_were_lost_just_now(opened: Open) -> None:
    vec_env = opened([SavedStranger] * 2, 2, 1)
    vec_env.prepare_restore("snapshot")
    told_by(vec_env, 2)
    os.kill(vec_env.worker_pids[1], signal.SIGKILL)
    with pytest.warns(MettaWarning, match="lost their episodes just now"):
        assert vec_env.state_dict() == {"class": "boundary"}
    with pytest.warns(MettaWarning, match="lost their episodes just now"):
        assert vec_env.state_dict() == {"class": "boundary"}
    obs = vec_env.obs_spec.zeros(2)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.warns(MettaWarning, match="rows 1 are lost"):
        assert vec_env.recv(0, obs).lost.tolist() == [1]
    assert vec_env.state_dict()["class"] == "snapshot"


def test_rows_are_lost_when_what_was_seen_as_they_were_loaded_is_not_seen_again(
    opened: Open,
) -> None:
    vec_env = opened([StrangerEnv] * 2, 2, 1)
    vec_env.load_state_dict(to_the_cut(vec_env, "repeat"))
    os.kill(vec_env.worker_pids[1], signal.SIGKILL)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.warns(MettaWarning, match="showed other observations"):
        assert vec_env.recv(0, vec_env.obs_spec.zeros(2)).lost.tolist() == [1]


def test_the_error_comes_home_when_an_environment_does_not_repeat_itself(opened: Open) -> None:
    serial, workers = opened([partial(CountdownEnv, 9)] * 2, 0, 1), opened([CountdownEnv] * 2, 2, 1)
    serial.prepare_restore("repeat")
    told_by(serial, 7)
    with pytest.raises(EnvError, match=r"row 0 .*ended after 5 of 7 repeated actions"):
        workers.load_state_dict(serial.state_dict())
    with pytest.raises(EnvError, match="reset"):
        workers.send(0, np.zeros(2, np.int64))
    assert len(told_by(workers, 3)) == 4


def test_nothing_is_logged_when_neither_restarts_nor_repetitions_need_it(opened: Open) -> None:
    vec_env = opened([CountdownEnv] * 2, 1, 1, max_worker_restarts=0)
    vec_env.prepare_restore("boundary")
    told_by(vec_env, 3)
    assert vec_env._log.place_of(0).actions.tolist() == []
    vec_env.prepare_restore("repeat")
    with pytest.warns(MettaWarning, match="not known"):
        assert vec_env.state_dict() == {"class": "boundary"}
    told_by(vec_env, 3)
    assert vec_env.state_dict()["lengths"].tolist() == [3, 3]


def test_the_budget_is_spent_when_states_are_asked_for(opened: Open) -> None:
    vec_env = opened([SavedCountdown], 1, 1, max_worker_restarts=1)
    vec_env.prepare_restore("snapshot")
    told_by(vec_env, 2)
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    assert vec_env.state_dict()["class"] == "snapshot"
    os.kill(vec_env.worker_pids[0], signal.SIGKILL)
    with pytest.raises(EnvError, match=r"1 restarts"):
        vec_env.state_dict()
    with pytest.raises(EnvError, match="closed"):
        vec_env.state_dict()
