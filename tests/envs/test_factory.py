from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from metta.envs import (
    GymnasiumVecEnv,
    MultiprocessVecEnv,
    SerialVecEnv,
    VecEnv,
    make_vec_env,
    row_seeds,
)
from metta.envs.toy import CorridorEnv, CountdownEnv
from metta.errors import ConfigError, EnvError
from metta.seeding import derive_seed


@pytest.fixture
def registered() -> Any:
    gymnasium.register("metta-test/Corridor-v0", lambda **kwargs: CorridorEnv(**kwargs))
    yield "metta-test/Corridor-v0"
    del gymnasium.registry["metta-test/Corridor-v0"]


def test_rows_are_made_by_gymnasium_when_given_an_id() -> None:
    vec_env = make_vec_env("CartPole-v1", num_envs=3)
    assert isinstance(vec_env, SerialVecEnv)
    assert vec_env.num_rows == 3
    # without the checker, which costs a fifth of each step
    assert "PassiveEnvChecker" not in repr(vec_env._groups[0].envs[0])


def test_keyword_arguments_reach_the_environment_when_given_an_id(registered: str) -> None:
    vec_env = make_vec_env(registered, num_envs=1, env_kwargs={"length": 17})
    assert vec_env.observation_space.shape == (17,)


def test_ids_of_this_process_work_when_workers_never_registered_them(registered: str) -> None:
    vec_env = make_vec_env(registered, num_envs=2, num_workers=2, env_kwargs={"length": 5})
    assert isinstance(vec_env, MultiprocessVecEnv)
    vec_env.reset([1, 2], vec_env.obs_spec.zeros(2))
    vec_env.close()


def test_the_module_is_imported_when_an_id_names_it() -> None:
    vec_env = make_vec_env("gymnasium.envs.classic_control:CartPole-v1")
    assert vec_env.num_rows == 1


def test_the_factory_is_called_once_per_row_when_given_one() -> None:
    vec_env = make_vec_env(CountdownEnv, num_envs=4, num_groups=2, env_kwargs={"length": 2})
    assert (vec_env.num_rows, vec_env.num_groups) == (4, 2)


def test_each_factory_makes_a_row_when_given_a_list() -> None:
    vec_env = make_vec_env([CountdownEnv, lambda: CountdownEnv(2)], num_envs=8)
    obs = vec_env.obs_spec.zeros(2)
    vec_env.reset([1, 2], obs)
    for _ in range(2):
        vec_env.send(0, np.zeros(2, np.int64))
        result = vec_env.recv(0, obs)
    assert result.terminated.tolist() == [False, True]


def test_an_instance_is_one_row_when_given_as_it_is() -> None:
    env = CountdownEnv()
    vec_env = make_vec_env(env, num_envs=8)
    assert vec_env.num_rows == 1
    obs = vec_env.obs_spec.zeros(1)
    vec_env.reset([1], obs)
    vec_env.send(0, np.zeros(1, np.int64))
    vec_env.recv(0, obs)
    assert env.steps == 1


def test_a_vector_env_is_kept_whole_when_given() -> None:
    vec_env = make_vec_env(SyncVectorEnv([CountdownEnv] * 3))
    assert isinstance(vec_env, GymnasiumVecEnv)
    assert vec_env.num_rows == 3


def test_a_vec_env_comes_back_when_given() -> None:
    vec_env = SerialVecEnv([CountdownEnv])
    assert isinstance(vec_env, VecEnv)
    assert make_vec_env(vec_env, num_envs=8, num_workers=2) is vec_env


@pytest.mark.parametrize("make", [CountdownEnv, lambda: SyncVectorEnv([CountdownEnv])])
@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_groups": 2}, {"env_kwargs": {"length": 2}}]
)
def test_options_are_refused_when_the_environment_exists_already(
    make: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        make_vec_env(make(), **options)


@pytest.mark.parametrize(
    ("options", "proposal"),
    [
        ({"num_envs": 7, "num_groups": 2}, "try num_envs=8"),
        ({"num_envs": 1, "num_groups": 4}, "try num_envs=4"),
        ({"num_envs": 2, "num_workers": 3}, "try num_workers=2"),
        ({"num_envs": 4, "num_groups": 2, "num_workers": 3}, "try num_workers=2 or num_envs=6"),
        ({"num_envs": 2, "num_workers": -1}, "use 0"),
        ({"num_envs": 0}, "at least 1"),
    ],
)
def test_a_legal_number_is_proposed_when_sizes_do_not_fit(
    options: dict[str, Any], proposal: str
) -> None:
    with pytest.raises(ConfigError, match=proposal):
        make_vec_env(CountdownEnv, **options)


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("cartpole-v1", "did you mean 'CartPole-v1'"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("CartPole-v99", "CartPole"),
        ("CartPole", "did you mean 'CartPole-v1'"),
        ("", "no environment ''"),
        ("not an id!", "not an id!"),
    ],
)
def test_the_closest_id_is_proposed_when_an_id_is_unknown(env_id: str, hint: str) -> None:
    with pytest.raises(EnvError, match=hint):
        make_vec_env(env_id)


@pytest.mark.parametrize("env", [3, None, [], [CountdownEnv, 3], {"a": 1}, object()])
def test_the_accepted_kinds_are_named_when_given_something_else(env: Any) -> None:
    with pytest.raises(EnvError, match="give a gymnasium id"):
        make_vec_env(env)


@given(st.integers(0, 2**63), st.integers(1, 64), st.integers(0, 8))
def test_seeds_differ_and_suit_every_generator_when_derived(
    seed: int, num_rows: int, rank: int
) -> None:
    seeds = row_seeds(seed, num_rows, rank)
    assert len(set(seeds)) == num_rows
    assert all(type(number) is int and 0 <= number < 2**31 for number in seeds)
    assert row_seeds(seed, num_rows + 5, rank)[:num_rows] == seeds
    assert set(seeds).isdisjoint(row_seeds(seed, num_rows, rank + 1))


def test_collisions_are_resolved_when_two_rows_would_share_a_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metta.envs.factory.derive_seed", lambda *_, **__: 2**63 - 1)
    assert row_seeds(1, 3) == [2**31 - 1, 0, 1]


def test_seeds_are_the_upper_bits_of_derived_seeds_when_nothing_collides() -> None:
    expected = [derive_seed(1, "env", rank=2, index=row) >> 32 for row in range(3)]
    assert row_seeds(1, 3, rank=2) == expected


def test_seeds_of_zero_and_one_differ_when_the_run_seed_is_falsy() -> None:
    assert row_seeds(0, 4) != row_seeds(1, 4)
