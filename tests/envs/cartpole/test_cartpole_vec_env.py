"""Metta's own carts: gymnasium's rules, two kernels with the same bits, and states that come back."""

import os
from typing import Any

import gymnasium
import numpy as np
import pytest

from metta.curriculum import Task
from metta.envs import RestorableVecEnv, VecEnv, make_vec_env
from metta.envs.cartpole import CartPoleVecEnv, carts, native_available, numpy_kernels
from metta.envs.env_ids import factory_of_id
from metta.errors import ConfigError, EnvError, StateError

needs_native = pytest.mark.skipif(
    os.environ.get("METTA_REQUIRE_NATIVE") != "1" and not native_available(),
    reason="metta.envs.cartpole._native was not built and METTA_REQUIRE_NATIVE is not 1",
)
both_kernels = pytest.mark.parametrize(
    "native", [pytest.param(True, marks=needs_native), False], ids=["c", "numpy"]
)


def opened(num_envs: int, *, seed: int = 0, **options: Any) -> tuple[CartPoleVecEnv, np.ndarray]:
    env = CartPoleVecEnv(num_envs, **options)
    env.prepare_restore()
    obs = env.obs_spec.zeros(num_envs)
    env.reset([seed + 10 * row for row in range(num_envs)], obs)
    return env, obs["obs"]


def step(env: CartPoleVecEnv, actions: Any, obs: np.ndarray) -> Any:
    size = env.num_rows // env.num_groups
    results = []
    for group in range(env.num_groups):
        rows = slice(group * size, (group + 1) * size)
        env.send(group, np.asarray(actions)[rows])
        results.append(env.recv(group, {"obs": obs[rows]}))
    return results[0] if len(results) == 1 else results


def state_of(env: CartPoleVecEnv) -> np.ndarray:
    found: np.ndarray = env.state_dict()["state"]
    return found


@both_kernels
def test_moves_are_those_of_gymnasium_when_states_and_actions_are(native: bool) -> None:
    env, obs = opened(6, native=native)
    world = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    world.reset(seed=0)
    generator, ends = np.random.default_rng(1), 0
    for _ in range(200):
        before, actions = state_of(env), generator.integers(0, 2, 6)
        result = step(env, actions, obs)
        after = state_of(env)
        for row in range(6):
            world.state, world.steps_beyond_terminated = before[:, row].copy(), None
            seen, reward, terminated, _, _ = world.step(int(actions[row]))
            assert (reward, terminated) == (result.rewards[row], result.terminated[row])
            ends += terminated
            if not terminated:
                np.testing.assert_allclose(after[:, row], world.state, rtol=0, atol=1e-14)
                np.testing.assert_allclose(obs[row], seen, rtol=1e-6)
                np.testing.assert_array_equal(obs[row], after[:, row].astype(np.float32))
    assert ends > 10


def test_spaces_are_those_of_gymnasium_when_compared() -> None:
    env, world = CartPoleVecEnv(2), gymnasium.make("CartPole-v1")
    assert env.observation_space == world.observation_space
    assert env.action_space == world.action_space
    assert isinstance(env, VecEnv)
    assert isinstance(env, RestorableVecEnv)


@both_kernels
def test_episodes_are_cut_at_the_limit_when_the_pole_stands(native: bool) -> None:
    env, obs = opened(3, native=native, max_episode_steps=4)
    for number in range(1, 5):
        actions = [number % 2] * 3
        before = state_of(env)
        result = step(env, actions, obs)
        assert result.truncated.tolist() == [number == 4] * 3
        assert result.starts.tolist() == [number == 4] * 3
    assert not result.terminated.any()
    assert result.final is not None
    assert result.final.rows.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(obs, state_of(env).T.astype(np.float32))
    assert np.abs(obs).max() <= 0.05
    moved = before.T[:, 0] + 0.02 * before.T[:, 1]
    np.testing.assert_array_equal(result.final.obs["obs"][:, 0], moved.astype(np.float32))


@both_kernels
def test_no_final_observation_is_given_when_the_last_step_terminates(native: bool) -> None:
    env, obs = opened(1, native=native)
    while not (result := step(env, [1], obs)).starts.any():
        assert result.final is None
    length = int(result.terminated.sum())
    assert (length, result.final) == (1, None)
    counted = 1
    while not step(env, [1], obs).starts.any():
        counted += 1
    limited, obs = opened(1, native=native, max_episode_steps=500)
    limited._worlds.episodes[:] = 0
    cut, obs = opened(1, native=native, max_episode_steps=9)
    for _ in range(9):
        result = step(cut, [1], obs)
    assert result.truncated.all()
    assert result.terminated.all() == (result.final is None)


@both_kernels
def test_episodes_follow_from_seed_and_number_when_played(native: bool) -> None:
    env, obs = opened(2, native=native, max_episode_steps=1)
    firsts = [obs.copy()]
    for _ in range(3):
        step(env, [0, 0], obs)
        firsts.append(obs.copy())
    assert len({first.tobytes() for first in firsts}) == 4
    swapped, other = (
        CartPoleVecEnv(2, native=native, max_episode_steps=1),
        np.zeros((2, 4), np.float32),
    )
    swapped.reset([10, 0], {"obs": other})
    for first in firsts:
        np.testing.assert_array_equal(other, first[::-1])
        step(swapped, [1, 1], other)
    everything = np.concatenate([first.ravel() for first in firsts])
    assert np.abs(everything).max() <= 0.05
    assert everything.std() > 0.01


@both_kernels
def test_groups_see_the_same_worlds_when_there_are_two_of_them(native: bool) -> None:
    one, seen = opened(6, native=native, max_episode_steps=12)
    two, other = opened(6, native=native, max_episode_steps=12, num_groups=2)
    generator = np.random.default_rng(0)
    for _ in range(60):
        actions = generator.integers(0, 2, 6)
        whole, parts = step(one, actions, seen), step(two, actions, other)
        np.testing.assert_array_equal(seen, other)
        joined = np.concatenate([part.truncated for part in parts])
        np.testing.assert_array_equal(whole.truncated, joined)


def _assert_twins(num_envs: int, num_steps: int) -> None:
    (left, seen), (right, other) = (
        opened(num_envs, native=native, max_episode_steps=60, seed=-5) for native in (True, False)
    )
    generator = np.random.default_rng(3)
    kinds = set()
    for _ in range(num_steps):
        actions = generator.integers(0, 2, num_envs)
        found, wanted = step(left, actions, seen), step(right, actions, other)
        for name in ("rewards", "terminated", "truncated", "valid", "starts"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        np.testing.assert_array_equal(seen, other)
        assert (found.final is None) == (wanted.final is None)
        if found.final is not None:
            np.testing.assert_array_equal(found.final.rows, wanted.final.rows)
            np.testing.assert_array_equal(found.final.obs["obs"], wanted.final.obs["obs"])
        kinds |= {
            (bool(t), bool(c)) for t, c in zip(found.terminated, found.truncated, strict=True)
        }
    np.testing.assert_array_equal(state_of(left), state_of(right))
    assert {(True, False), (False, True), (False, False)} <= kinds


@needs_native
def test_both_kernels_give_the_same_bits_when_they_play_on() -> None:
    _assert_twins(130, 120)


@needs_native
@pytest.mark.slow
def test_both_kernels_give_the_same_bits_when_they_play_a_million_steps() -> None:
    _assert_twins(1000, 1000)


@both_kernels
def test_steps_are_equal_to_the_bit_when_another_takes_the_state(native: bool) -> None:
    env, obs = opened(4, native=native, max_episode_steps=20)
    generator = np.random.default_rng(2)
    for _ in range(33):
        step(env, generator.integers(0, 2, 4), obs)
    saved, actions = env.state_dict(), generator.integers(0, 2, (50, 4))
    other, seen = opened(
        4, native=not native or not native_available(), max_episode_steps=20, seed=9
    )
    assert other.load_state_dict(saved) is None
    for row in actions:
        step(env, row, obs)
        step(other, row, seen)
        np.testing.assert_array_equal(obs, seen)


DAMAGES: dict[str, Any] = {
    "fallen": lambda state: state["state"].__setitem__((2, 1), 0.3),
    "away": lambda state: state["state"].__setitem__((0, 1), -2.5),
    "nan": lambda state: state["state"].__setitem__((3, 0), np.nan),
    "late": lambda state: state["steps"].__setitem__(0, 500),
    "early": lambda state: state["steps"].__setitem__(0, -1),
    "episode": lambda state: state["episodes"].__setitem__(0, -1),
    "rows": lambda state: state.update(steps=np.zeros(3, np.int32)),
    "dtype": lambda state: state.update(seeds=state["seeds"].astype(np.float64)),
    "missing": lambda state: state.pop("state"),
    "limit": lambda state: state.update(max_episode_steps=499),
    "class": lambda state: state.update({"class": "repeat"}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_states_are_refused_when_they_are_damaged(name: str) -> None:
    env, _ = opened(2)
    before, state = env.state_dict(), env.state_dict()
    DAMAGES[name](state)
    with pytest.raises(StateError):
        env.load_state_dict(state)
    env.load_state_dict(before)
    np.testing.assert_array_equal(state_of(env), before["state"])


@pytest.mark.parametrize("actions", [[0, 2], [-1, 0], [0.5, 1.0], [0], [[0, 1]]])
def test_actions_are_refused_when_they_are_none(actions: Any) -> None:
    env, obs = opened(2)
    with pytest.raises(EnvError):
        step(env, actions, obs)
    step(env, [0, 1], obs)


def test_carts_are_made_when_they_are_named() -> None:
    env = make_vec_env(
        "metta/cartpole", num_envs=4, num_groups=2, env_kwargs={"max_episode_steps": 7}
    )
    assert isinstance(env, CartPoleVecEnv)
    assert (env.num_rows, env.num_groups) == (4, 2)
    with pytest.raises(ConfigError, match="use num_workers=0"):
        make_vec_env("metta/cartpole", num_envs=4, num_workers=2)
    with pytest.raises(EnvError, match="it takes max_episode_steps"):
        make_vec_env("metta/cartpole", env_kwargs={"gravity": 1.0})
    with pytest.raises(ConfigError, match="at least 1"):
        make_vec_env("metta/cartpole", env_kwargs={"max_episode_steps": 0})
    with pytest.raises(EnvError, match="there is no single one"):
        factory_of_id("metta/cartpole", {})
    with pytest.raises(ConfigError, match="play one task only"):
        make_vec_env([Task("metta/cartpole"), Task("CartPole-v1")])
    with pytest.raises(EnvError, match="did you mean 'metta/cartpole'"):
        make_vec_env("metta/cartpol")


def test_the_twin_steps_when_no_kernels_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carts, "_native", None)
    env = CartPoleVecEnv(2)
    assert env._worlds._kernels is numpy_kernels
    assert not env.is_fusable
    with pytest.raises(ConfigError, match="were not built"):
        CartPoleVecEnv(2, native=True)
