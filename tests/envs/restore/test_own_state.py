"""What an environment says of its state comes back, to the bit and with its type; the rest is named."""

import enum
import json
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from faults.saved_envs import SavedCartPole
from metta.envs.restore.env_values import UnreadableStateError
from metta.envs.restore.own_state import load_own_state, own_state
from metta.envs.toy import CountdownEnv
from metta.errors import EnvError, StateError
from metta.state_tree import pack_state, unpack_state


class HolderEnv(CountdownEnv):
    """Holds whatever it is given, and says so."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def get_state(self) -> Any:
        return self.value

    def set_state(self, state: Any) -> None:
        self.value = state


def moved(env: Any, other: Any) -> Any:
    """`other`, after it took the state of `env` through what a checkpoint does to it."""
    packed, tensors = pack_state(own_state(env))
    load_own_state(other, unpack_state(json.loads(json.dumps(packed)), tensors))
    return other


PLAIN = [
    None,
    True,
    7,
    -(2**100),
    0.1,
    -0.0,
    math.inf,
    "text with \ud800 and 'quotes'",
    [],
    [1, [2.5, "x"], None],
    (),
    (1, (2, [3])),
    {"a": 1, 2: "b", "$tensor": {"c": 4.0}},
]


@pytest.mark.parametrize(
    "value", PLAIN, ids=[f"{n}-{type(v).__name__}" for n, v in enumerate(PLAIN)]
)
def test_values_come_back_as_they_were_when_they_are_plain(value: Any) -> None:
    held = moved(HolderEnv(value), HolderEnv("something else")).value
    assert type(held) is type(value)
    assert repr(held) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.float32(0.1),
        np.float64(0.1),
        np.float16(-0.0),
        np.bool_(True),
        np.str_("spade"),
    ],
    ids=repr,
)
def test_numpy_scalars_keep_their_type_when_they_come_back(value: np.generic) -> None:
    held = moved(HolderEnv(value), HolderEnv()).value
    assert type(held) is type(value)
    assert held.tobytes() == value.tobytes()


ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,
    np.array(3.5),
    np.zeros((0, 3), np.float32),
    np.array([2**64 - 1, 0], np.uint64),
    np.arange(3, dtype=">f8"),
    np.array([1 + 2j], np.complex64),
    np.array(["ab", "c"]),
    np.array(["2020-01-01"], "datetime64[D]"),
    np.array([True, False]),
    np.frombuffer(b"abc", np.uint8),
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}")
def test_arrays_come_back_with_dtype_shape_and_layout_when_restored(value: np.ndarray) -> None:
    held = moved(HolderEnv(value), HolderEnv()).value
    assert (held.dtype, held.shape) == (value.dtype, value.shape)
    assert held.tobytes() == value.tobytes()
    assert held.flags.f_contiguous == value.flags.f_contiguous
    assert held.flags.writeable


def test_a_state_stands_alone_when_environments_go_on() -> None:
    live = {
        "array": np.zeros(3),
        "columns": np.zeros((2, 2)).T,
        "list": [1],
        "tensor": torch.zeros(2),
    }
    state = own_state(HolderEnv(live))
    first, second = HolderEnv(), HolderEnv()
    load_own_state(first, state)
    for held in (live, first.value):
        held["array"] += 1
        held["columns"] += 1
        held["list"].append(2)
        held["tensor"] += 1
    load_own_state(second, state)
    assert second.value["list"] == [1]
    assert not any(second.value[name].any() for name in ("array", "columns", "tensor"))


def _draws(generator: Any) -> list[float]:
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1), generator.randrange(9)]
    numbers = [*generator.standard_normal(3), *generator.random(3)]
    if isinstance(generator, np.random.Generator):
        numbers += [*generator.integers(0, 9, 3, np.int32)]
        numbers += [child.random() for child in generator.spawn(2)]
    return [float(number) for number in numbers]


GENERATORS: dict[str, Callable[[int], Any]] = {
    **{
        kind: lambda seed, kind=kind: np.random.Generator(getattr(np.random, kind)(seed))  # type: ignore[misc]
        for kind in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    },
    "listed entropy": lambda seed: np.random.default_rng([seed, 2, 3]),
    "spawned": lambda seed: np.random.default_rng(seed).spawn(3)[-1],
    "RandomState": np.random.RandomState,
    "Random": random.Random,
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_draw_and_spawn_the_same_when_restored(kind: str) -> None:
    generator = GENERATORS[kind](1)
    # half of a word, and half of a pair of normal numbers, are left over
    _draws(generator)
    other = moved(HolderEnv([generator]), HolderEnv())
    assert _draws(other.value[0]) == _draws(generator)


@pytest.mark.parametrize(
    "generator", [np.random.random.__self__, random.random.__self__], ids=["numpy", "python"]
)
def test_generators_are_refused_when_the_whole_process_shares_them(generator: Any) -> None:
    with pytest.raises(UnreadableStateError, match=r"get_state\(\)\['rng'\] is a generator that"):
        own_state(HolderEnv({"rng": generator}))


def test_secrets_are_refused_when_they_are_in_a_text_or_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "correct-horse-battery")
    for value in (["x correct-horse-battery"], {"correct-horse-battery": 1}):
        with pytest.raises(UnreadableStateError, match="a text with a secret in it"):
            own_state(HolderEnv(value))


class Weekday(enum.IntEnum):
    MONDAY = 2


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (threading.Lock(), "a lock"),
        (object(), "an object"),
        ({1, 2}, "a set"),
        (deque([1]), "a deque"),
        (Weekday.MONDAY, "a Weekday"),
        (b"x", "a bytes"),
        (np.array([None]), "a ndarray of object"),
        (np.ma.zeros(1), "a MaskedArray"),
        (random.SystemRandom(), "a SystemRandom"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_place_is_named_when_a_value_cannot_be_saved(value: Any, kind: str) -> None:
    with pytest.raises(UnreadableStateError) as caught:
        own_state(wrappers.TimeLimit(HolderEnv([{"x": value}]), 3))
    assert f"HolderEnv.get_state()[0]['x'] is {kind}" in str(caught.value)


@pytest.mark.parametrize("key", [(1, 2), True, 1.5, "metta.array"], ids=repr)
def test_the_key_is_named_when_a_mapping_cannot_be_saved(key: Any) -> None:
    with pytest.raises(UnreadableStateError, match="has the key"):
        own_state(HolderEnv({key: 1}))


def test_a_state_is_refused_when_it_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnreadableStateError, match="nested too deep to be saved"):
        own_state(HolderEnv(loop))


@pytest.mark.parametrize("around", [list, tuple, dict], ids=lambda kind: kind.__name__)
def test_a_checkpoint_takes_the_state_when_it_is_as_deep_as_it_may_be(around: Any) -> None:
    state: Any = np.random.Generator(np.random.MT19937(1))
    for _ in range(40):
        try:
            own_state(HolderEnv(state))
        except UnreadableStateError:
            break
        deepest = own_state(HolderEnv(state))
        state = {1: state} if around is dict else around([state])
    else:
        pytest.fail("no state was too deep")
    # as deep as rows of several tasks are in a checkpoint
    pack_state({"environments": {"state": {"rows": [{"env": {"open": [[0, deepest]]}}]}}})


class TiredWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Speaks for itself, and for itself alone."""

    energy = 9

    def get_state(self) -> Any:
        return self.energy

    def set_state(self, state: Any) -> None:
        self.energy = state


def test_every_layer_comes_back_when_each_speaks_for_itself() -> None:
    env, other = (TiredWrapper(wrappers.TimeLimit(SavedCartPole(), 5)) for _ in range(2))
    env.reset(seed=1)
    other.reset(seed=2)
    env.step(0)
    env.energy = 4
    moved(env, other)
    assert other.energy == 4
    assert other.env._elapsed_steps == 1  # type: ignore[attr-defined]
    assert repr(other.step(1)) == repr(env.step(1))
    assert other.unwrapped.np_random.random() == env.unwrapped.np_random.random()


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 3),
    "MaxAndSkipObservation": wrappers.MaxAndSkipObservation,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5, (1, 3)),
    "TimeAwareObservation": wrappers.TimeAwareObservation,
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 13),
    "stateless": lambda env: wrappers.ClipReward(
        wrappers.DtypeObservation(wrappers.OrderEnforcing(env), np.float64), 0, 1
    ),
}


def _played(env: Any, num_steps: int) -> list[Any]:
    told = []
    for step in range(num_steps):
        told.append([np.array(part) for part in env.step(step % 2)[:4]])
        if any(told[-1][2:]):
            told.append([np.array(env.reset(seed=step)[0])])
    return told


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("cut", [0, 7, 25])
def test_steps_are_equal_when_a_known_wrapper_is_around(name: str, cut: int) -> None:
    env, other = (
        WRAPPED[name](wrappers.TimeLimit(wrappers.PassiveEnvChecker(SavedCartPole()), 20))
        for _ in range(2)
    )
    env.reset(seed=1)
    other.reset(seed=2)
    _played(env, cut)
    _played(other, 3)
    moved(env, other)
    assert repr(_played(other, 30)) == repr(_played(env, 30))


def test_statistics_come_back_when_a_wrapper_keeps_them() -> None:
    env, other = (
        wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(SavedCartPole(), 5), buffer_length=3)
        for _ in range(2)
    )
    env.reset(seed=1)
    other.reset(seed=2)
    _played(env, 12)
    moved(env, other)
    for name in ("episode_count", "episode_returns", "episode_lengths", "return_queue"):
        assert getattr(other, name) == getattr(env, name)
    assert other.return_queue.maxlen == 3
    assert env.episode_count == 2


class OwnLimit(wrappers.TimeLimit):
    """A known wrapper, and something more."""


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (CartPoleEnv(), "CartPoleEnv"),
        (wrappers.TimeLimit(CartPoleEnv(), 3), "CartPoleEnv"),
        (OwnLimit(SavedCartPole(), 3), "OwnLimit"),
        (wrappers.TimeLimit(OwnLimit(SavedCartPole(), 3), 3), "OwnLimit"),
    ],
)
def test_the_layer_is_named_when_it_gives_no_state(env: Any, name: str) -> None:
    with pytest.raises(UnreadableStateError, match=f"^{name} has no get_state"):
        own_state(env)


class HalfEnv(CountdownEnv):
    """Can only be set, as MuJoCo's environments."""

    def set_state(self, state: Any) -> None:
        raise AssertionError("it cannot give one")


def test_a_layer_gives_no_state_when_it_has_half_of_the_pair() -> None:
    with pytest.raises(UnreadableStateError, match="HalfEnv has no get_state"):
        own_state(HalfEnv())


class BrokenEnv(CountdownEnv):
    lives = 1

    def get_state(self) -> Any:
        return 1 / self.lives

    def set_state(self, state: Any) -> None:
        raise RuntimeError(f"no {state}")


def test_the_layer_is_named_when_its_own_methods_fail() -> None:
    env = BrokenEnv()
    state = own_state(env)
    with pytest.raises(EnvError, match=r"BrokenEnv.set_state\(\) failed: RuntimeError: no 1.0"):
        load_own_state(env, state)
    env.lives = 0
    with pytest.raises(UnreadableStateError, match=r"get_state\(\) failed: ZeroDivisionError"):
        own_state(env)


def _places(node: Any) -> list[Any]:
    children = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, child in list(children):
        found.append((node, key))
        if isinstance(child, (dict, list)):
            found += _places(child)
    return found


@pytest.mark.parametrize("garbage", [None, -1, 2**70, "x", [], {}, {"metta.array": 3}])
def test_only_a_state_error_is_raised_when_a_state_is_damaged(garbage: Any) -> None:
    def make() -> Any:
        value = [*PLAIN, *ARRAYS, {name: made(1) for name, made in GENERATORS.items()}]
        env = wrappers.FrameStackObservation(wrappers.TimeLimit(HolderEnv(value), 3), 2)
        env.reset(seed=1)
        return env

    state, num_refused = own_state(make()), 0
    for parent, key in _places(state):
        kept, parent[key] = parent[key], garbage
        try:
            load_own_state(make(), state)
        except StateError:
            num_refused += 1
        parent[key] = kept
    load_own_state(make(), state)
    assert num_refused > 30


@pytest.mark.parametrize("state", [None, {}, [], {"layers": 3}, {"layers": []}, {"layers": [{}]}])
def test_a_state_is_refused_when_it_is_not_of_an_environment(state: Any) -> None:
    with pytest.raises(StateError):
        load_own_state(HolderEnv(), state)


def test_a_state_is_refused_when_layers_are_others() -> None:
    state = own_state(wrappers.TimeLimit(HolderEnv(), 3))
    with pytest.raises(
        StateError, match=r"is of \['TimeLimit', 'HolderEnv'\].* is \['HolderEnv'\]"
    ):
        load_own_state(HolderEnv(), state)


def test_the_way_out_is_named_when_an_older_version_read_the_attributes() -> None:
    old = {"kind": "object", "type": "HolderEnv", "attributes": {"value": 3}}
    with pytest.raises(
        StateError, match=r"older versions of metta.*finish the run with the version"
    ):
        load_own_state(HolderEnv(), old)


def test_spaces_stay_when_a_state_is_taken() -> None:
    env, other = HolderEnv(1), HolderEnv(2)
    space = other.action_space
    moved(env, other)
    assert other.action_space is space
    assert space == spaces.Discrete(2)


def test_a_wrapper_is_unreadable_when_it_only_has_the_name_of_a_known_one() -> None:
    look_alike = type("TimeLimit", (gymnasium.Wrapper,), {})
    with pytest.raises(UnreadableStateError, match="TimeLimit has no get_state"):
        own_state(look_alike(HolderEnv(1)))


def test_a_wrapper_is_unreadable_when_this_version_keeps_its_state_elsewhere() -> None:
    wrapped = wrappers.TimeLimit(HolderEnv(1), 9)
    del wrapped._elapsed_steps
    with pytest.raises(UnreadableStateError, match="another TimeLimit"):
        own_state(wrapped)
