import traceback
from functools import partial
from typing import Any

import numpy as np
import pytest

from metta.envs import SerialVecEnv, make_vec_env
from metta.envs.toy import CountdownEnv
from metta.errors import ConfigError, EnvError
from tests.envs.faulty_envs import FaultyEnv, OtherSpaceEnv, SimulatorError


class ClosingEnv(CountdownEnv):
    def __init__(self, closed: list[int], row: int) -> None:
        super().__init__()
        self.closed, self.row = closed, row

    def close(self) -> None:
        self.closed.append(self.row)


def test_the_error_names_row_and_step_when_an_environment_raises() -> None:
    vec_env = SerialVecEnv([CountdownEnv, CountdownEnv, partial(FaultyEnv, "raise"), CountdownEnv])
    obs = vec_env.obs_spec.zeros(4)
    vec_env.reset(range(4), obs)
    for _ in range(2):
        vec_env.send(0, np.zeros(4, np.int64))
        vec_env.recv(0, obs)
    vec_env.send(0, np.zeros(4, np.int64))
    with pytest.raises(EnvError, match=r"row 2 .* failed at step 3: SimulatorError") as caught:
        vec_env.recv(0, obs)
    assert isinstance(caught.value.__cause__, SimulatorError)
    assert "_misbehave" in "".join(traceback.format_exception(caught.value))


def test_the_error_names_the_row_when_reset_raises() -> None:
    vec_env = SerialVecEnv([partial(FaultyEnv, "nothing"), partial(FaultyEnv, "raise", at=0)])
    with pytest.raises(EnvError, match=r"row 1 failed in reset\(seed=6\): SimulatorError"):
        vec_env.reset([5, 6], vec_env.obs_spec.zeros(2))


def test_rows_of_the_second_group_are_counted_from_the_first_when_they_fail() -> None:
    vec_env = SerialVecEnv(
        [CountdownEnv, CountdownEnv, CountdownEnv, partial(FaultyEnv, "raise", 1)], 2
    )
    vec_env.reset(range(4), vec_env.obs_spec.zeros(4))
    vec_env.send(1, np.zeros(2, np.int64))
    with pytest.raises(EnvError, match="row 3 "):
        vec_env.recv(1, vec_env.obs_spec.zeros(2))


def test_all_environments_are_closed_when_one_fails() -> None:
    closed: list[int] = []
    vec_env = SerialVecEnv([partial(ClosingEnv, closed, 0), partial(FaultyEnv, "raise", 1)])
    obs = vec_env.obs_spec.zeros(2)
    vec_env.reset([1, 2], obs)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.raises(EnvError, match="row 1"):
        vec_env.recv(0, obs)
    assert closed == [0]


def test_environments_are_closed_when_a_later_one_cannot_be_made() -> None:
    closed: list[int] = []

    def broken() -> Any:
        raise SimulatorError("no licence")

    with pytest.raises(EnvError, match=r"row 1 could not be made: SimulatorError: no licence"):
        SerialVecEnv([partial(ClosingEnv, closed, 0), broken])
    assert closed == [0]


def test_every_environment_is_closed_when_closing_one_fails() -> None:
    closed: list[int] = []
    vec_env = SerialVecEnv(
        [
            partial(ClosingEnv, closed, 0),
            partial(FaultyEnv, "close"),
            partial(ClosingEnv, closed, 2),
        ]
    )
    with pytest.raises(EnvError, match=r"row 1 failed in close\(\): .*would not stop"):
        vec_env.close()
    assert closed == [0, 2]


def test_the_first_error_is_raised_when_closing_fails_too() -> None:
    vec_env = SerialVecEnv([partial(FaultyEnv, "raise", 1), partial(FaultyEnv, "close")])
    obs = vec_env.obs_spec.zeros(2)
    vec_env.reset([1, 2], obs)
    vec_env.send(0, np.zeros(2, np.int64))
    with pytest.raises(EnvError, match="lost its mind") as caught:
        vec_env.recv(0, obs)
    assert "would not stop" in caught.value.__notes__[0]


def test_spaces_are_refused_when_rows_differ() -> None:
    with pytest.raises(EnvError, match=r"(?s)row 1 has .*Discrete\(3\), but row 0 has"):
        SerialVecEnv([CountdownEnv, OtherSpaceEnv])


def test_factories_are_refused_when_they_return_one_object_twice() -> None:
    env = CountdownEnv()
    with pytest.raises(EnvError, match="rows 0 and 1 returned the same object"):
        SerialVecEnv([lambda: env, lambda: env])


def test_factories_are_refused_when_they_return_no_environment() -> None:
    with pytest.raises(EnvError, match="int is not an environment"):
        SerialVecEnv([lambda: 3])  # type: ignore[list-item, return-value]


@pytest.mark.parametrize("num_groups", [0, 3])
def test_groups_are_refused_when_they_do_not_divide_the_rows(num_groups: int) -> None:
    with pytest.raises(ConfigError, match="try num_envs="):
        SerialVecEnv([CountdownEnv] * 4, num_groups)


def test_no_rows_are_refused_when_the_list_of_factories_is_empty() -> None:
    with pytest.raises(ConfigError, match="empty"):
        SerialVecEnv([])


def test_an_id_or_a_factory_is_asked_for_when_the_environment_is_given_itself() -> None:
    closed: list[int] = []
    vec_env = make_vec_env(ClosingEnv(closed, 0))
    assert isinstance(vec_env, SerialVecEnv)
    promise = vec_env.prepare_restore()
    assert promise.restore_class == "boundary"
    assert "give an id or a factory" in promise.reason
    assert closed == []
    vec_env.reset([1], vec_env.obs_spec.zeros(1))
