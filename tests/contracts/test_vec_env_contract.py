"""What every `VecEnv` promises, run over all backends.

The reference is a gymnasium environment stepped by hand: whatever the backend, each row must tell the
same story of first observations, rewards, ends and last observations.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from metta.envs import GymnasiumVecEnv, MultiprocessVecEnv, SerialVecEnv, StepResult, VecEnv
from metta.envs.cartpole import CartPoleVecEnv
from metta.envs.rows.row_spec import episode_seed
from metta.envs.toy import (
    BufferReuseEnv,
    ContinuousTargetEnv,
    CountdownEnv,
    MaskedCorridorEnv,
    MultiDiscreteEnv,
    NestedEnv,
)
from metta.errors import EnvError

Factory = Callable[[], Any]
Backend = Callable[[list[Factory]], VecEnv]

# workers need not import this module, and pytest with it
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_ROWS = 4
SEEDS = [11, 12, 13, 14]


def _serial(num_groups: int) -> Backend:
    return lambda factories: SerialVecEnv(factories, num_groups)


def _multiprocess(num_groups: int, num_workers: int) -> Backend:
    return lambda factories: MultiprocessVecEnv(factories, num_workers, num_groups)


def _native(mode: AutoresetMode) -> Backend:
    return lambda factories: GymnasiumVecEnv(SyncVectorEnv(factories, autoreset_mode=mode))


IN_STEP = {
    "serial-1": _serial(1),
    "serial-2": _serial(2),
    "multiprocess-1x1": _multiprocess(1, 1),
    "multiprocess-1x2": _multiprocess(1, 2),
    "multiprocess-2x1": _multiprocess(2, 1),
    "multiprocess-2x2": _multiprocess(2, 2),
}
BACKENDS = {
    # groups and workers at once; a test below compares all of the above
    "serial-2": IN_STEP["serial-2"],
    "multiprocess-2x2": IN_STEP["multiprocess-2x2"],
    "native-same-step": _native(AutoresetMode.SAME_STEP),
    "native-next-step": _native(AutoresetMode.NEXT_STEP),
    "native-disabled": _native(AutoresetMode.DISABLED),
}
all_backends = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())


def _cart_pole() -> Any:
    return gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=20)


@contextmanager
def opened(backend: Backend, factory: Factory) -> Iterator[VecEnv]:
    vec_env = backend([factory] * NUM_ROWS)
    try:
        yield vec_env
    finally:
        vec_env.close()


def step_all(
    vec_env: VecEnv, actions: np.ndarray, obs: dict[str, np.ndarray]
) -> list[tuple[int, StepResult]]:
    """One step of every group, both under way at once; (first row, result) of each."""
    size = vec_env.num_rows // vec_env.num_groups
    firsts = [group * size for group in range(vec_env.num_groups)]
    for group, first in enumerate(firsts):
        vec_env.send(group, actions[first : first + size])
    results = []
    for group, first in enumerate(firsts):
        part = {key: array[first : first + size] for key, array in obs.items()}
        results.append((first, vec_env.recv(group, part)))
    return results


def draw_actions(space: Any, num_steps: int) -> np.ndarray:
    """Actions ``[row, k]`` of each row's k-th step."""
    space.seed(0)
    return np.array([[space.sample() for _ in range(num_steps)] for _ in range(NUM_ROWS)])


def row_of(obs: Any, row: int) -> dict[str, bytes]:
    return {key: array[row].tobytes() for key, array in obs.items()}


def told_by(vec_env: VecEnv, actions: np.ndarray, num_events: int) -> list[list[Any]]:
    """The first events of each row: ("first", obs), ("step", reward, ends, next obs, numbers)."""
    obs = vec_env.obs_spec.zeros(NUM_ROWS)
    vec_env.reset(SEEDS, obs)
    stories: list[list[Any]] = [[("first", row_of(obs, row))] for row in range(NUM_ROWS)]
    counts = np.zeros(NUM_ROWS, int)
    while min(len(story) for story in stories) < num_events:
        for first, result in step_all(vec_env, actions[np.arange(NUM_ROWS), counts], obs):
            for row in range(len(result.rewards)):
                _tell(stories[first + row], result, row, row_of(obs, first + row))
                counts[first + row] += int(result.valid[row])
    return [story[:num_events] for story in stories]


def _tell(story: list[Any], result: StepResult, row: int, observed: dict[str, bytes]) -> None:
    terminated, truncated = bool(result.terminated[row]), bool(result.truncated[row])
    if result.valid[row]:
        after: dict[str, bytes] | None = observed
        if terminated:
            after = None
        elif truncated:
            assert result.final is not None
            place = result.final.rows.tolist().index(row)
            after = row_of(result.final.obs, place)
        numbers = [found for info_row, found in result.infos if info_row == row]
        story.append(("step", float(result.rewards[row]), terminated, truncated, after, numbers))
    else:
        assert result.rewards[row] == 0
        assert not terminated
        assert not truncated
    if result.starts[row]:
        story.append(("first", observed))


def told_by_hand(
    factory: Factory, row: int, actions: np.ndarray, num_events: int, vec_env: VecEnv
) -> list[Any]:
    """The same story from the environment itself; vector environments seed the first episode only."""
    env, spec, episode = factory(), vec_env.obs_spec, 0
    every_episode_is_seeded = not isinstance(vec_env, GymnasiumVecEnv)

    def seen(observation: Any) -> dict[str, bytes]:
        out = spec.zeros(1)
        spec.write(observation, out, 0)
        return row_of(out, 0)

    story: list[Any] = [("first", seen(env.reset(seed=SEEDS[row])[0]))]
    for action in actions[row]:
        obs, reward, terminated, truncated, info = env.step(action)
        after = None if terminated else seen(obs)
        over = terminated or truncated
        numbers = [{k: float(v) for k, v in info.items()}] if over and info else []
        story.append(("step", float(np.float32(reward)), terminated, truncated, after, numbers))
        if over:
            episode += 1
            seed = episode_seed(SEEDS[row], episode) if every_episode_is_seeded else None
            story.append(("first", seen(env.reset(seed=seed)[0])))
    env.close()
    return story[:num_events]


def assert_same_story(backend: Backend, factory: Factory, num_events: int = 120) -> None:
    with opened(backend, factory) as vec_env:
        actions = draw_actions(vec_env.action_space, num_events)
        stories = told_by(vec_env, actions, num_events)
        for row, story in enumerate(stories):
            assert story == told_by_hand(factory, row, actions, num_events, vec_env)


@all_backends
@pytest.mark.parametrize(
    "factory",
    [
        _cart_pole,
        NestedEnv,
        ContinuousTargetEnv,
        MultiDiscreteEnv,
        partial(CountdownEnv, 3),
        partial(CountdownEnv, 3, truncate=True),
    ],
    ids=["cartpole", "nested", "box", "multidiscrete", "terminates", "truncates"],
)
def test_rows_tell_the_same_story_when_stepped_by_any_backend(
    backend: Backend, factory: Factory
) -> None:
    assert_same_story(backend, factory)


class _OneCart(gymnasium.Env):
    """One of metta's own carts as a gymnasium environment; only its first seed counts."""

    def __init__(self) -> None:
        self._cart = CartPoleVecEnv(1, max_episode_steps=20, native=False)
        self.observation_space = self._cart.observation_space
        self.action_space = self._cart.action_space
        self._obs = self._cart.obs_spec.zeros(1)
        self._begun = False

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if not self._begun:
            self._cart.reset([seed], self._obs)
        self._begun = True
        return self._obs["obs"][0].copy(), {}

    def step(self, action: Any) -> Any:
        self._cart.send(0, np.array([action]))
        result = self._cart.recv(0, self._obs)
        seen = self._obs["obs"][0] if result.final is None else result.final.obs["obs"][0]
        ends = bool(result.terminated[0]), bool(result.truncated[0])
        return seen.copy(), float(result.rewards[0]), *ends, {}


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_carts_tell_the_same_story_when_they_are_stepped_together(num_groups: int) -> None:
    assert_same_story(
        lambda _: CartPoleVecEnv(NUM_ROWS, num_groups, max_episode_steps=20), _OneCart
    )


@all_backends
@pytest.mark.parametrize("truncate", [False, True])
def test_every_step_starts_an_episode_when_episodes_have_one_step(
    backend: Backend, truncate: bool
) -> None:
    assert_same_story(backend, partial(CountdownEnv, 1, truncate=truncate), num_events=12)


@all_backends
def test_no_final_observation_is_given_when_a_step_terminates_and_truncates(
    backend: Backend,
) -> None:
    with opened(backend, lambda: TimeLimit(CountdownEnv(2), max_episode_steps=2)) as vec_env:
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        vec_env.reset(SEEDS, obs)
        actions = np.zeros(NUM_ROWS, np.int64)
        step_all(vec_env, actions, obs)
        for _, result in step_all(vec_env, actions, obs):
            assert result.terminated.all()
            assert result.truncated.all()
            assert result.final is None


@all_backends
def test_only_cut_rows_have_final_observations_when_others_end_otherwise(backend: Backend) -> None:
    both = partial(TimeLimit, CountdownEnv(2), max_episode_steps=2)
    cut, terminated = partial(CountdownEnv, 2, truncate=True), partial(CountdownEnv, 2)
    vec_env = backend([both, cut, terminated, cut])
    obs = vec_env.obs_spec.zeros(NUM_ROWS)
    vec_env.reset(SEEDS, obs)
    actions = np.zeros(NUM_ROWS, np.int64)
    step_all(vec_env, actions, obs)
    found: dict[int, list[float]] = {}
    for first, result in step_all(vec_env, actions, obs):
        assert result.final is not None
        rows = (first + result.final.rows).tolist()
        found |= dict(zip(rows, result.final.obs["obs"].tolist(), strict=True))
    assert found == {1: [2.0], 3: [2.0]}
    vec_env.close()


class _ResetCounterEnv(CountdownEnv):
    """Observes how often it was reset since it was made; a seed does not change that."""

    def __init__(self) -> None:
        super().__init__(length=2)
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.num_resets = 0

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        self.num_resets += 1
        return np.full(1, self.num_resets, np.float32), info


def test_resets_are_counted_alike_when_only_the_backend_differs() -> None:
    stories = []
    for backend in IN_STEP.values():
        with opened(backend, _ResetCounterEnv) as vec_env:
            stories.append(told_by(vec_env, draw_actions(vec_env.action_space, 10), 10))
    assert all(story == stories[0] for story in stories[1:])


@pytest.mark.parametrize(
    "backend",
    # gymnasium's own SAME_STEP keeps a reference to the last observation, not a copy
    [make for name, make in BACKENDS.items() if name != "native-same-step"],
    ids=[name for name in BACKENDS if name != "native-same-step"],
)
def test_observations_are_copies_when_the_environment_reuses_its_buffer(backend: Backend) -> None:
    assert_same_story(backend, BufferReuseEnv, num_events=24)


@all_backends
@pytest.mark.parametrize("mask_in", ["info", "observation"])
def test_masks_fit_the_observation_in_place_when_legality_depends_on_the_state(
    backend: Backend, mask_in: Any
) -> None:
    with opened(backend, partial(MaskedCorridorEnv, mask_in=mask_in, max_steps=7)) as vec_env:
        assert vec_env.mask_size == 3
        assert [leaf.key for leaf in vec_env.obs_spec.leaves] in (["obs"], ["position"])
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        masks = vec_env.reset(SEEDS, obs).action_mask
        assert masks is not None
        masks, in_last_state = masks.copy(), np.zeros(NUM_ROWS, bool)
        generator, num_ends = np.random.default_rng(0), 0
        for _ in range(60):
            expected = np.array([_legal_at(next(iter(obs.values()))[r]) for r in range(NUM_ROWS)])
            expected[in_last_state] = True
            np.testing.assert_array_equal(masks, expected)
            actions = np.array([generator.choice(np.flatnonzero(mask)) for mask in masks])
            for first, result in step_all(vec_env, actions, obs):
                rows = slice(first, first + len(result.rewards))
                masks[rows] = result.action_mask
                ended = result.terminated | result.truncated
                in_last_state[rows] = ended & ~result.starts
                num_ends += int(ended.sum())
        assert num_ends > 10


def _legal_at(one_hot: np.ndarray) -> np.ndarray:
    env = MaskedCorridorEnv()
    env._position = int(one_hot.argmax())
    return env.legal()


@all_backends
def test_arrays_have_promised_shapes_and_dtypes_when_observations_are_nested(
    backend: Backend,
) -> None:
    with opened(backend, NestedEnv) as vec_env:
        assert isinstance(vec_env, VecEnv)
        assert (vec_env.num_rows, vec_env.mask_size) == (NUM_ROWS, 0)
        assert vec_env.observation_space == NestedEnv().observation_space
        assert vec_env.action_space == NestedEnv().action_space
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        result = vec_env.reset(SEEDS, obs)
        assert result.valid.all()
        assert result.starts.all()
        assert not result.rewards.any()
        assert not (result.terminated | result.truncated).any()
        size = NUM_ROWS // vec_env.num_groups
        _check_arrays(result, NUM_ROWS)
        for _ in range(40):
            for _, result in step_all(vec_env, np.zeros(NUM_ROWS, np.int64), obs):
                _check_arrays(result, size)
                if result.final is not None:
                    assert result.final.rows.dtype == np.int64
                    for leaf in vec_env.obs_spec.leaves:
                        found = result.final.obs[leaf.key]
                        assert found.shape == (len(result.final.rows), *leaf.shape)
                        assert found.dtype == leaf.dtype


def _check_arrays(result: StepResult, num_rows: int) -> None:
    assert (result.rewards.shape, result.rewards.dtype) == ((num_rows,), np.dtype(np.float32))
    for flag in (result.terminated, result.truncated, result.valid, result.starts):
        assert (flag.shape, flag.dtype) == ((num_rows,), np.dtype(np.bool_))
    assert result.action_mask is None


@pytest.mark.parametrize("factory", [_cart_pole, NestedEnv], ids=["cartpole", "nested"])
def test_streams_are_equal_to_the_bit_when_only_the_backend_differs(factory: Factory) -> None:
    streams = []
    for backend in IN_STEP.values():
        with opened(backend, factory) as vec_env:
            actions = draw_actions(vec_env.action_space, 400)
            obs = vec_env.obs_spec.zeros(NUM_ROWS)
            vec_env.reset(SEEDS, obs)
            stream = [row_of(obs, slice(None))]  # type: ignore[arg-type]
            for step in range(400):
                results = step_all(vec_env, actions[:, step], obs)
                stream.append(row_of(obs, slice(None)))  # type: ignore[arg-type]
                stream += [
                    _joined(results, name) for name in ("rewards", "terminated", "truncated")
                ]
            streams.append(stream)
    assert all(stream == streams[0] for stream in streams[1:])


def _joined(results: list[tuple[int, StepResult]], name: str) -> Any:
    return np.concatenate([getattr(result, name) for _, result in results]).tobytes()


@all_backends
def test_a_story_repeats_when_reset_with_the_same_seeds(backend: Backend) -> None:
    with opened(backend, NestedEnv) as vec_env:
        actions = draw_actions(vec_env.action_space, 30)
        assert told_by(vec_env, actions, 30) == told_by(vec_env, actions, 30)


@all_backends
def test_a_step_under_way_is_dropped_when_reset_comes_before_recv(backend: Backend) -> None:
    with opened(backend, NestedEnv) as vec_env:
        actions = draw_actions(vec_env.action_space, 30)
        story = told_by(vec_env, actions, 30)
        for group in range(vec_env.num_groups):
            vec_env.send(group, np.zeros(NUM_ROWS // vec_env.num_groups, np.int64))
        assert told_by(vec_env, actions, 30) == story


@all_backends
def test_nothing_happens_when_closed_twice(backend: Backend) -> None:
    vec_env = backend([CountdownEnv] * NUM_ROWS)
    vec_env.close()
    vec_env.close()
    with pytest.raises(EnvError, match="closed"):
        vec_env.reset(SEEDS, vec_env.obs_spec.zeros(NUM_ROWS))


@all_backends
def test_calls_out_of_turn_are_refused_when_send_and_recv_do_not_alternate(
    backend: Backend,
) -> None:
    with opened(backend, CountdownEnv) as vec_env:
        size = NUM_ROWS // vec_env.num_groups
        obs, actions = vec_env.obs_spec.zeros(size), np.zeros(size, np.int64)
        with pytest.raises(EnvError, match="reset"):
            vec_env.send(0, actions)
        vec_env.reset(SEEDS, vec_env.obs_spec.zeros(NUM_ROWS))
        with pytest.raises(EnvError, match=r"send\(\) comes first"):
            vec_env.recv(0, obs)
        vec_env.send(0, actions)
        with pytest.raises(EnvError, match=r"recv\(\) comes next"):
            vec_env.send(0, actions)
        vec_env.recv(0, obs)
        with pytest.raises(EnvError, match="group 7"):
            vec_env.send(7, actions)


@all_backends
def test_bad_arguments_are_refused_when_they_do_not_fit_the_rows(backend: Backend) -> None:
    with opened(backend, CountdownEnv) as vec_env:
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        with pytest.raises(EnvError, match="2 seeds for 4 rows"):
            vec_env.reset([1, 2], obs)
        with pytest.raises(EnvError, match=r"obs_spec\.zeros"):
            vec_env.reset(SEEDS, {"obs": np.zeros((NUM_ROWS, 1))})
        vec_env.reset(SEEDS, obs)
        size = NUM_ROWS // vec_env.num_groups
        with pytest.raises(EnvError, match="shape"):
            vec_env.send(0, np.zeros((size, 1), np.int64))
        with pytest.raises(EnvError, match="dtype"):
            vec_env.send(0, np.zeros(size, np.float32))


class _NaNEnv(CountdownEnv):
    """Gives NaN in the second step: as reward, as observation, or as last observation."""

    def __init__(self, where: str) -> None:
        super().__init__(length=2 if where == "final observation" else 9, truncate=True)
        self.where = where

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == 2 and self.where == "reward":
            reward = float("inf")
        elif self.steps == 2:
            observation = observation * np.nan
        return observation, reward, terminated, truncated, info


@all_backends
@pytest.mark.parametrize("where", ["reward", "observation", "final observation"])
def test_nan_and_infinity_are_refused_when_an_environment_returns_them(
    backend: Backend, where: str
) -> None:
    with opened(backend, partial(_NaNEnv, where)) as vec_env:
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        vec_env.reset(SEEDS, obs)
        actions = np.zeros(NUM_ROWS, np.int64)
        step_all(vec_env, actions, obs)
        with pytest.raises(EnvError, match=rf"{where}.* of row [0-3] is (nan|inf) at step 2"):
            step_all(vec_env, actions, obs)
        with pytest.raises(EnvError, match="closed"):
            vec_env.recv(0, obs)


class _GrudgeEnv(ContinuousTargetEnv):
    """Keeps the action of the step before and tells it in the reward."""

    def __init__(self) -> None:
        super().__init__(size=1)
        self._kept = np.zeros(1, np.float32)

    def step(self, action: np.ndarray) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        reward, self._kept = float(self._kept[0]), action
        return observation, reward, terminated, truncated, info


@all_backends
def test_actions_stay_as_they_were_when_an_environment_keeps_them(backend: Backend) -> None:
    with opened(backend, _GrudgeEnv) as vec_env:
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        vec_env.reset(SEEDS, obs)
        actions = np.full((NUM_ROWS, 1), 0.25, np.float32)
        step_all(vec_env, actions, obs)
        actions[:] = 0.75
        for _, result in step_all(vec_env, actions, obs):
            assert (result.rewards == 0.25).all()


@all_backends
def test_actions_are_converted_when_their_dtype_is_wider_than_the_space(backend: Backend) -> None:
    with opened(backend, ContinuousTargetEnv) as vec_env:
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        vec_env.reset(SEEDS, obs)
        targets = obs["obs"].copy()
        for first, result in step_all(vec_env, targets.astype(np.float64), obs):
            assert (result.rewards == 0).all(), first
