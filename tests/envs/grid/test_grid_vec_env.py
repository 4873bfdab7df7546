"""Grid worlds keep the promises of every `VecEnv`, and those about tasks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metta.envs import RestorableVecEnv, VecEnv
from metta.envs.grid import TASKS, Cell, GridVecEnv, GridWorldConfig, GridWorlds
from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.vec_env import TaskedVecEnv
from metta.errors import EnvError
from metta.spaces import ObsLeaf, ObsSpec
from tests.contracts import test_vec_env_contract as contract

from .text_worlds import both_kernels

PAIR = GridWorldConfig(
    width=7, height=7, num_agents=2, num_resources=3, num_depots=1, horizon=9, goal=2, view_radius=2
)
GROUPS = pytest.mark.parametrize("num_groups", [1, 2])


def as_backend(num_groups: int, native: bool) -> Any:
    """Two worlds of two agents, whatever environments the contract asks for."""
    return lambda factories: GridVecEnv([PAIR], len(factories) // 2, num_groups, native=native)


@both_kernels
@GROUPS
@pytest.mark.parametrize(
    "promise",
    [
        contract.test_a_story_repeats_when_reset_with_the_same_seeds,
        contract.test_a_step_under_way_is_dropped_when_reset_comes_before_recv,
        contract.test_nothing_happens_when_closed_twice,
        contract.test_calls_out_of_turn_are_refused_when_send_and_recv_do_not_alternate,
        contract.test_bad_arguments_are_refused_when_they_do_not_fit_the_rows,
    ],
    ids=lambda promise: promise.__name__.removeprefix("test_"),
)
def test_the_contract_is_kept_when_worlds_are_grids(
    promise: Any, num_groups: int, native: bool
) -> None:
    promise(as_backend(num_groups, native))


@both_kernels
@GROUPS
def test_arrays_have_promised_shapes_and_dtypes_when_worlds_are_grids(
    num_groups: int, native: bool
) -> None:
    envs = GridVecEnv([PAIR], 4, num_groups, native=native)
    assert isinstance(envs, VecEnv)
    assert isinstance(envs, RestorableVecEnv)
    assert isinstance(envs, TaskedVecEnv)
    assert (envs.num_rows, envs.agents_per_env, envs.mask_size, envs.num_tasks) == (8, 2, 0, 1)
    assert envs.observation_space.nvec.tolist() == [8] * 29
    assert envs.observation_space.dtype == np.uint8
    assert envs.action_space.n == 5
    obs = envs.obs_spec.zeros(8)
    result = envs.reset(range(8), obs)
    contract._check_arrays(result, 8)
    assert not result.rewards.any()
    assert result.starts.all()
    for _ in range(30):
        for _, result in contract.step_all(envs, np.full(8, 2), obs):
            contract._check_arrays(result, 8 // num_groups)
            assert all(envs.observation_space.contains(row.astype(np.uint8)) for row in obs["obs"])
            if result.final is not None:
                assert result.final.rows.dtype == np.int64
                found, [leaf] = result.final.obs["obs"], envs.obs_spec.leaves
                assert found.shape == (len(result.final.rows), *leaf.shape)
                assert found.dtype == leaf.dtype


def streams(envs: GridVecEnv, num_steps: int) -> list[Any]:
    """Everything that is seen of some random steps, whatever the groups."""
    generator = np.random.default_rng(0)
    obs = envs.obs_spec.zeros(envs.num_rows)
    envs.reset(range(envs.num_rows), obs)
    told: list[Any] = [obs["obs"].tobytes()]
    for _ in range(num_steps):
        results = contract.step_all(envs, generator.integers(0, 5, envs.num_rows), obs)
        told.append(obs["obs"].tobytes())
        told += [
            contract._joined(results, name)
            for name in ("rewards", "terminated", "truncated", "valid", "starts")
        ]
        told.append([(first + row, numbers) for first, r in results for row, numbers in r.infos])
        finals = [(first, r.final) for first, r in results if r.final is not None]
        told.append([row for first, final in finals for row in (first + final.rows).tolist()])
        told.append(b"".join(final.obs["obs"].tobytes() for _, final in finals))
    return told


@both_kernels
@pytest.mark.parametrize("num_groups", [2, 3, 6])
def test_streams_are_equal_to_the_bit_when_only_the_groups_differ(
    num_groups: int, native: bool
) -> None:
    whole, split = (GridVecEnv([PAIR], 6, groups, native=native) for groups in (1, num_groups))
    assert streams(whole, 80) == streams(split, 80)


@both_kernels
def test_a_world_has_its_own_story_when_its_neighbours_differ(native: bool) -> None:
    alone, among = (GridVecEnv([PAIR], count, native=native) for count in (1, 3))
    obs, all_obs = alone.obs_spec.zeros(2), among.obs_spec.zeros(6)
    alone.reset([5, 0], obs)
    # a world takes the seed of its first row; the others count nowhere
    among.reset([1, 9, 2, 9, 5, 9], all_obs)
    generator = np.random.default_rng(0)
    for _ in range(60):
        actions = generator.integers(0, 5, 6)
        alone.send(0, actions[4:])
        among.send(0, actions)
        first, second = alone.recv(0, obs), among.recv(0, all_obs)
        np.testing.assert_array_equal(obs["obs"], all_obs["obs"][4:])
        np.testing.assert_array_equal(first.rewards, second.rewards[4:])


SEEDS = [3, 0, 4, 0]


@both_kernels
@pytest.mark.parametrize(("action", "row"), [(5, 2), (-1, 0), (2**40, 3), (-(2**63), 1)])
def test_an_action_is_refused_before_anything_moves_when_it_does_not_exist(
    action: int, row: int, native: bool
) -> None:
    envs = GridVecEnv([PAIR], 2, native=native)
    obs = envs.obs_spec.zeros(4)
    envs.prepare_restore()
    envs.reset(SEEDS, obs)
    before = envs.state_dict()
    actions = np.zeros(4, np.int64)
    actions[row] = action
    with pytest.raises(EnvError, match=rf"got action {action} in row {row}; actions are 0"):
        envs.send(0, actions)
    after = envs.state_dict()
    assert all((after[name] == before[name]).all() for name in before if name != "class")
    envs.send(0, np.zeros(4, np.int32))
    envs.recv(0, obs)


SHORT = replace(PAIR, horizon=3, goal=0)
TALL = replace(SHORT, height=11, width=9, horizon=2)


@both_kernels
def test_a_task_is_taken_when_the_next_episode_begins(native: bool) -> None:
    envs = GridVecEnv([SHORT, TALL], 2, native=native)
    obs = envs.obs_spec.zeros(4)
    assert envs.next_tasks.tolist() == [0, 0]
    envs.next_tasks[:] = [0, 1]
    envs.reset(SEEDS, obs)
    assert envs.tasks.tolist() == [0, 1]
    assert [envs.view(index).cells.shape for index in (0, 1)] == [(7, 7), (11, 9)]
    envs.next_tasks[:] = [1, 0]
    played = []
    for _ in range(6):
        envs.send(0, np.zeros(4, np.int64))
        result = envs.recv(0, obs)
        played.append((envs.tasks.tolist(), result.starts[::2].tolist()))
    assert played == [
        ([0, 1], [False, False]),
        ([0, 0], [False, True]),
        ([1, 0], [True, False]),
        ([1, 0], [False, False]),
        ([1, 0], [True, True]),
        ([1, 0], [False, False]),
    ]
    assert [view.task for view in (envs.view(0), envs.view(1))] == [1, 0]
    assert (envs.tasks.dtype, envs.next_tasks.dtype) == (np.int32, np.int32)


@both_kernels
@pytest.mark.parametrize("wrong", [2, -1])
def test_a_task_is_refused_when_it_does_not_exist(wrong: int, native: bool) -> None:
    envs = GridVecEnv([SHORT, TALL], 2, native=native)
    obs = envs.obs_spec.zeros(4)
    envs.reset(SEEDS, obs)
    envs.next_tasks[1] = wrong
    envs.send(0, np.zeros(4, np.int64))
    message = rf"next_tasks\[1\] is {wrong}, but tasks have the numbers 0 to 1"
    with pytest.raises(EnvError, match=message):
        envs.recv(0, obs)
    envs.next_tasks[1] = 1
    envs.recv(0, obs)
    envs.next_tasks[1] = wrong
    with pytest.raises(EnvError, match=message):
        envs.reset(SEEDS, obs)


def test_what_is_played_stays_when_somebody_writes_to_it() -> None:
    envs = GridVecEnv([SHORT, TALL], 2)
    with pytest.raises(ValueError, match="read-only"):
        envs.tasks[0] = 1
    with pytest.raises(AttributeError):
        envs.next_tasks = np.ones(2, np.int32)  # type: ignore[misc]


@both_kernels
def test_worlds_stay_sound_when_they_are_played_for_long(native: bool) -> None:
    envs = GridVecEnv([TASKS["crowd"]], 3, native=native)
    obs = envs.obs_spec.zeros(envs.num_rows)
    envs.reset(range(envs.num_rows), obs)
    generator = np.random.default_rng(0)
    for _ in range(300):
        envs.send(0, generator.integers(0, 5, envs.num_rows))
        envs.recv(0, obs)
        assert obs["obs"].max() <= 7
        for index in range(3):
            view = envs.view(index)
            assert (view.cells == Cell.RESOURCE).sum() == TASKS["crowd"].num_resources
            assert len({tuple(place) for place in view.agents.tolist()}) == 32


def test_a_world_is_refused_when_it_does_not_exist() -> None:
    envs = GridVecEnv([PAIR], 2)
    with pytest.raises(EnvError, match="world 2 does not exist; there are 2"):
        envs.view(2)
    with pytest.raises(EnvError, match="world -1"):
        envs.view(-1)


@both_kernels
@pytest.mark.parametrize("action", [5, -1])
def test_worlds_refuse_an_action_themselves_when_nobody_looked_at_it_before(
    action: int, native: bool
) -> None:
    worlds = GridWorlds([PAIR], 2, native=native)
    leaf = ObsLeaf("obs", (), (PAIR.observation_size,), np.dtype(np.uint8), "discrete")
    rows = RowArrays.allocate(ObsSpec((leaf,)), 4, 0)
    obs = np.zeros((4, PAIR.observation_size), np.uint8)
    worlds.reset([1, 2], obs)
    before = worlds.saved()
    with pytest.raises(EnvError, match=f"got action {action} in row 3"):
        worlds.step(0, np.array([0, 1, 2, action]), obs, rows)
    assert all((array == before[name]).all() for name, array in worlds.saved().items())
    with pytest.raises(EnvError, match="got 3 seeds for 2 worlds"):
        worlds.reset([1, 2, 3], obs)
