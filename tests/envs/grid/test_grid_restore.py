"""Grid worlds are brought back to the bit, and damaged states are refused before they are used."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metta.envs.grid import Cell, GridVecEnv, GridWorldConfig, native_available
from metta.envs.grid.saved_worlds import SAVED_ARRAYS
from metta.errors import ConfigError, EnvError, StateError
from metta.stateful import digest_of
from tests.contracts.restored_envs import CUTS, NUM_ROWS, SEEDS, Recording, play, saved

from .text_worlds import both_kernels, needs_native

TASKS = [
    GridWorldConfig(
        width=8, height=7, num_agents=2, num_resources=4, num_depots=1, horizon=25, goal=3
    ),
    GridWorldConfig(
        width=11, height=6, num_agents=2, num_rooms=2, num_resources=2, num_depots=2, horizon=40
    ),
]


def opened(native: bool | None = None, num_groups: int = 1) -> GridVecEnv:
    envs = GridVecEnv(TASKS, NUM_ROWS // 2, num_groups, native=native)
    envs.next_tasks[:] = [0, 1]
    envs.prepare_restore()
    return envs


@both_kernels
@pytest.mark.parametrize("num_groups", [1, 2])
def test_steps_are_equal_to_the_bit_when_other_worlds_take_the_state(
    num_groups: int, native: bool
) -> None:
    recording = Recording(opened(native, num_groups))
    assert recording.num_ends >= 2 * NUM_ROWS
    for cut in CUTS:
        other = GridVecEnv(TASKS, NUM_ROWS // 2, num_groups, native=native)
        assert other.load_state_dict(recording.states[cut]) is None
        actions, told = recording.part(cut)
        assert play(other, actions) == told
        assert other.num_resets == 0


@needs_native
def test_steps_are_equal_to_the_bit_when_the_other_kernels_take_the_state() -> None:
    recording = Recording(opened(native=True, num_groups=2))
    for cut in CUTS:
        other = GridVecEnv(TASKS, NUM_ROWS // 2, 2, native=False)
        other.load_state_dict(recording.states[cut])
        actions, told = recording.part(cut)
        assert play(other, actions) == told


@both_kernels
def test_worlds_end_up_alike_when_other_groups_take_the_state(native: bool) -> None:
    recording = Recording(opened(native))
    one, two = (GridVecEnv(TASKS, NUM_ROWS // 2, groups, native=native) for groups in (1, 2))
    for envs in (one, two):
        envs.load_state_dict(recording.states[CUTS[1]])
        play(envs, recording.part(CUTS[1])[0])
    assert digest_of(state_of(one)) == digest_of(state_of(two))


def state_of(envs: GridVecEnv) -> dict[str, Any]:
    envs.prepare_restore()
    return envs.state_dict()


@both_kernels
def test_worlds_stand_where_they_stood_when_they_go_back_and_forth(native: bool) -> None:
    recording = Recording(opened(native))
    other = opened(native)
    other.reset(SEEDS[::-1], other.obs_spec.zeros(NUM_ROWS))
    for cut, later in ((CUTS[2], CUTS[2] + 9), (CUTS[0], CUTS[1])):
        other.load_state_dict(recording.states[cut])
        assert play(other, recording.actions[cut:later]) == recording.told[cut:later]
    assert digest_of(other.state_dict()) == digest_of(recording.states[CUTS[1]])


def test_a_state_has_memory_of_its_own_when_worlds_go_on() -> None:
    envs = opened()
    obs = envs.obs_spec.zeros(NUM_ROWS)
    envs.reset(SEEDS, obs)
    state = envs.state_dict()
    before = digest_of(state)
    play(envs, [np.full(NUM_ROWS, 2)] * 5)
    assert digest_of(state) == before
    envs.load_state_dict(state)
    play(envs, [np.full(NUM_ROWS, 2)] * 5)
    assert digest_of(state) == before


def test_the_class_is_snapshot_when_restoring_is_prepared() -> None:
    envs = GridVecEnv(TASKS, 2)
    assert envs.state_dict() == {"class": "boundary"}
    envs.reset(SEEDS, envs.obs_spec.zeros(NUM_ROWS))
    assert envs.state_dict() == {"class": "boundary"}  # nobody asked for more
    assert envs.prepare_restore().restore_class == "snapshot"
    assert envs.state_dict()["class"] == "snapshot"
    assert set(envs.state_dict()) == {"class", *SAVED_ARRAYS}
    assert envs.prepare_restore("boundary").restore_class == "boundary"
    assert envs.prepare_restore("sync_reset").restore_class == "sync_reset"
    assert envs.state_dict() == {"class": "boundary"}
    with pytest.raises(ConfigError, match="'repeat'"):
        envs.prepare_restore("repeat")


def test_a_reset_comes_next_when_a_boundary_was_loaded() -> None:
    envs = opened()
    envs.reset(SEEDS, envs.obs_spec.zeros(NUM_ROWS))
    assert envs.load_state_dict({"class": "boundary"}) is None
    with pytest.raises(EnvError, match="reset"):
        envs.send(0, np.zeros(NUM_ROWS, np.int64))


def test_no_state_is_given_when_a_step_is_under_way() -> None:
    envs = opened()
    envs.reset(SEEDS, envs.obs_spec.zeros(NUM_ROWS))
    envs.send(0, np.zeros(NUM_ROWS, np.int64))
    with pytest.raises(EnvError, match="under way"):
        envs.state_dict()


def standing() -> dict[str, Any]:
    """A good state in the middle of an episode."""
    envs = opened()
    envs.reset(SEEDS, envs.obs_spec.zeros(NUM_ROWS))
    play(envs, list(np.random.default_rng(0).integers(0, 5, (12, NUM_ROWS))))
    state: dict[str, Any] = saved(envs.state_dict())
    return state


def written(name: str, place: Any, value: Any) -> Any:
    def damage(state: dict[str, Any]) -> None:
        state[name][place] = value

    return damage


def replaced(name: str, change: Any) -> Any:
    def damage(state: dict[str, Any]) -> None:
        state[name] = change(state[name])

    return damage


def _open_border(state: dict[str, Any]) -> None:
    state["cells"][0, 3, 5] = Cell.EMPTY  # the upper wall of a world with radius 3


def _two_on_one_cell(state: dict[str, Any]) -> None:
    state["positions"][0, 1] = state["positions"][0, 0]


def _extra_agent(state: dict[str, Any]) -> None:
    empty = np.argwhere(state["cells"][0] == Cell.EMPTY)[0]
    state["cells"][0][tuple(empty)] = Cell.AGENT


def _wrong_mark(state: dict[str, Any]) -> None:
    position = state["positions"][0, 0]
    state["cells"][0].reshape(-1)[position] ^= 1


DAMAGES: dict[str, tuple[Any, str]] = {
    "class": (replaced("class", lambda _: "nonsense"), "class 'nonsense'"),
    "repeat": (replaced("class", lambda _: "repeat"), "class 'repeat'"),
    "missing array": (lambda state: state.pop("cells"), "no array 'cells'"),
    "list": (replaced("keys", lambda array: array.tolist()), "no array 'keys'; found list"),
    "dtype": (replaced("steps", lambda array: array.astype(np.int64)), "steps of shape"),
    "shape": (replaced("cargo", lambda array: array[:, :1]), "cargo of shape"),
    "fewer worlds": (replaced("seeds", lambda array: array[:1]), "seeds of shape"),
    "other settings": (written("settings", (0, 2), 26), "other values of settings"),
    "other rewards": (written("reward_table", (0, 0), 3.0), "other values of reward_table"),
    "task": (written("tasks", 0, 2), "tasks of world 0 hold 2"),
    "negative task": (written("tasks", 1, -1), "tasks of world 1 hold -1"),
    "next task": (written("next_tasks", 1, 9), "next_tasks of world 1"),
    "late step": (written("steps", 0, 25), "steps of world 0 hold 25"),
    "early step": (written("steps", 0, -1), "steps of world 0"),
    "episode": (written("episodes", 0, -1), "episodes of world 0"),
    "draws": (written("draws", 0, 2**63 - 1), "draws of world 0"),
    "missing": (written("missing", 0, -4), "missing of world 0"),
    "cargo": (written("cargo", (0, 1), 8), "cargo of world 0 hold 8"),
    "keys": (written("keys", (1, 0), -1), "keys of world 1"),
    "counts": (written("counts", (1, 0, 3), -1), "counts of world 1"),
    "code": (written("cells", (1, 5, 5), 8), "cells of world 1 hold 8"),
    "border": (_open_border, "not walled in"),
    "far position": (written("positions", (0, 0), 2**31 - 1), "positions of world 0"),
    "negative position": (written("positions", (0, 0), -5), "positions of world 0"),
    "two on one cell": (_two_on_one_cell, "are not where"),
    "extra agent": (_extra_agent, "are not where"),
    "wrong mark": (_wrong_mark, "are not where"),
}


@both_kernels
@pytest.mark.parametrize("name", DAMAGES)
def test_a_state_is_refused_by_name_when_it_is_damaged(name: str, native: bool) -> None:
    damage, message = DAMAGES[name]
    state = standing()
    envs = opened(native)
    envs.load_state_dict(state)
    before = digest_of(envs.state_dict())
    damage(state)
    with pytest.raises(StateError, match=message):
        envs.load_state_dict(state)
    with pytest.raises(EnvError, match="reset"):
        envs.send(0, np.zeros(NUM_ROWS, np.int64))
    assert digest_of({"class": "snapshot", **envs._worlds.saved()}) == before


def test_a_state_is_refused_when_it_is_of_other_tasks() -> None:
    state = standing()
    other = GridVecEnv([TASKS[0], replace(TASKS[1], capacity=1)], 2)
    with pytest.raises(StateError, match="other values of settings than these tasks"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="shape"):
        GridVecEnv(TASKS, 3).load_state_dict(state)
    with pytest.raises(StateError, match="shape"):
        GridVecEnv(TASKS[:1], 2).load_state_dict(state)


@settings(max_examples=300)
@given(
    name=st.sampled_from(SAVED_ARRAYS),
    place=st.integers(0, 10**6),
    byte=st.integers(0, 255),
    native=st.booleans(),
)
def test_nothing_crashes_when_any_byte_of_a_state_is_changed(
    name: str, place: int, byte: int, native: bool
) -> None:
    state = {key: array.copy() for key, array in GOOD.items() if key != "class"}
    raw = state[name].reshape(-1).view(np.uint8)
    raw[place % len(raw)] = byte
    envs = GridVecEnv(TASKS, 2, native=native and native_available())
    try:
        envs.load_state_dict({"class": "snapshot", **state})
    except StateError:
        return
    obs = envs.obs_spec.zeros(NUM_ROWS)
    for action in (1, 2, 3, 4) * 12:
        envs.send(0, np.full(NUM_ROWS, action))
        envs.recv(0, obs)
        assert obs["obs"].max() <= 7


GOOD = standing()
