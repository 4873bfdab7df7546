"""What is read of an environment comes back, to the bit and with its type; what cannot be read is named."""

import enum
import functools
import io
import json
import logging
import math
import random
import threading
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.wrappers import TimeLimit

from metta.envs.restore.env_restore import restore_env
from metta.envs.restore.env_snapshot import snapshot_env
from metta.envs.restore.env_values import UnreadableStateError
from metta.envs.toy import CountdownEnv, NestedEnv
from metta.errors import StateError
from metta.store.state_tree import pack_state, unpack_state


class HolderEnv(CountdownEnv):
    """Holds whatever it is given."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Weekday(enum.IntEnum):
    SUNDAY = 1
    MONDAY = 2


Pair = namedtuple("Pair", "left right")


def moved(env: Any, other: Any) -> Any:
    """`other`, after it took the state of `env` through what a checkpoint does to it."""
    packed, tensors = pack_state(snapshot_env(env))
    restore_env(other, unpack_state(json.loads(json.dumps(packed)), tensors))
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
    {"a": 1, 2: "b", (3, "c"): {None: 4.0}, True: 5},
    {1, "one", 2.0, (3, 4)},
    frozenset({1, 2}),
    deque([1, 2]),
    deque([1, 2, 3], maxlen=3),
    Colour.BLUE,
    Weekday.MONDAY,
]


@pytest.mark.parametrize(
    "value", PLAIN, ids=[f"{n}-{type(v).__name__}" for n, v in enumerate(PLAIN)]
)
def test_values_come_back_as_they_were_when_they_are_plain(value: Any) -> None:
    before = type(value)[value.name] if isinstance(value, enum.Enum) else None
    start = next(iter(type(value))) if isinstance(value, enum.Enum) else "something else"
    held = moved(HolderEnv(value=value), HolderEnv(value=start)).value
    assert held == value
    assert type(held) is type(value)
    assert held == value if isinstance(value, set) else repr(held) == repr(value)
    assert getattr(held, "maxlen", None) == getattr(value, "maxlen", None)
    assert before is None or held is before


def test_nan_comes_back_when_an_attribute_is_one() -> None:
    assert math.isnan(moved(HolderEnv(value=math.nan), HolderEnv()).value)


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
    held = moved(HolderEnv(value=value), HolderEnv()).value
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
    held = moved(HolderEnv(value=value), HolderEnv(value=value)).value
    assert (held.dtype, held.shape) == (value.dtype, value.shape)
    assert held.tobytes() == value.tobytes()
    assert held.flags.f_contiguous == value.flags.f_contiguous
    assert held.flags.writeable
    assert not np.may_share_memory(held, value)


def test_a_state_stands_alone_when_environments_go_on() -> None:
    array, things = np.zeros(3), [1, 2]
    env = HolderEnv(array=array, things=things)
    tree = snapshot_env(env)
    array += 1
    things.append(3)
    first, second = HolderEnv(), HolderEnv()
    restore_env(first, tree)
    first.array += 5
    first.things.append(9)
    restore_env(second, tree)
    assert second.array.tolist() == [0, 0, 0]
    assert second.things == [1, 2]


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


@pytest.mark.parametrize("live", [1, 5, None], ids=["same seed", "other seed", "nothing there"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_draw_and_spawn_the_same_when_restored(kind: str, live: int | None) -> None:
    generator = GENERATORS[kind](1)
    # half of a word, and half of a pair of normal numbers, are left over
    _draws(generator)
    other = moved(
        HolderEnv(rng=generator), HolderEnv(rng=None if live is None else GENERATORS[kind](live))
    )
    assert _draws(other.rng) == _draws(generator)


@pytest.mark.parametrize(
    "generator", [np.random.random.__self__, random.random.__self__], ids=["numpy", "python"]
)
def test_generators_are_refused_when_the_whole_process_shares_them(generator: Any) -> None:
    with pytest.raises(UnreadableStateError, match="'rng' is a generator that the whole process"):
        snapshot_env(HolderEnv(rng=generator))


def test_generators_are_refused_when_they_share_their_bits() -> None:
    bits = np.random.PCG64(1)
    first, second = np.random.Generator(bits), np.random.Generator(bits)
    with pytest.raises(UnreadableStateError, match="'second' is a generator that shares its bits"):
        snapshot_env(HolderEnv(first=first, second=second))


def test_spaces_sample_the_same_when_their_generators_were_in_use() -> None:
    env, other = NestedEnv(), NestedEnv()
    env.observation_space.seed(3)
    other.observation_space.seed(4)
    env.action_space.seed(5)
    env.observation_space.sample()
    moved(env, other)
    for name in ("observation_space", "action_space"):
        first, second = getattr(env, name).sample(), getattr(other, name).sample()
        assert repr(first) == repr(second)


def test_what_was_one_object_is_one_object_when_it_comes_back() -> None:
    array, generator, loop = np.zeros(2), np.random.default_rng(1), [1]
    loop.append(loop)  # type: ignore[arg-type]
    thing = Thing(array=array, rng=generator)
    env = HolderEnv(thing=thing, array=array, rng=generator, loop=loop, things=[thing, thing])
    thing.env = env
    apart = Thing(array=np.ones(2), rng=np.random.default_rng(2))
    other = HolderEnv(thing=apart, array=None, rng=apart.rng, loop=None, things=[])
    apart.env = other
    moved(env, other)
    assert other.thing is apart
    assert other.thing.env is other
    assert other.array is other.thing.array
    assert other.rng is other.thing.rng
    assert other.things == [apart, apart]
    assert other.loop[1] is other.loop


def test_what_was_two_objects_is_two_objects_when_the_other_had_one() -> None:
    rng = np.random.default_rng(3)
    env = HolderEnv(a=np.random.default_rng(1), b=np.random.default_rng(2))
    other = moved(env, HolderEnv(a=rng, b=rng))
    assert other.a is not other.b
    assert (other.a.random(), other.b.random()) == (env.a.random(), env.b.random())
    thing = Thing(x=1)
    with pytest.raises(StateError, match="b was a Thing of its own"):
        moved(HolderEnv(a=Thing(x=1), b=Thing(x=2)), HolderEnv(a=thing, b=thing))


def test_arrays_are_refused_when_they_overlap() -> None:
    memory = np.zeros((4, 4))
    with pytest.raises(UnreadableStateError, match=r"'state' and 'things\[0\]' share memory"):
        snapshot_env(HolderEnv(state=memory, things=[memory[1:3]]))
    apart = moved(HolderEnv(a=memory[:2], b=memory[2:]), HolderEnv())
    assert (apart.a.shape, apart.b.shape) == ((2, 4), (2, 4))


class SwigProxy:
    """As SWIG makes them: a plain object with a pointer in `this`."""

    def __init__(self) -> None:
        self.this = threading.Lock()


class Slotted:
    __slots__ = ("x",)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (threading.Lock(), "a lock"),
        (SwigProxy(), "a SwigProxy"),
        (Slotted(), "a Slotted"),
        (io.StringIO(), "a StringIO"),
        (memoryview(b"x"), "a memoryview"),
        (iter([1]), "a list_iterator"),
        (object(), "an object"),
        (bytearray(b"x"), "a bytearray"),
        (Pair(1, 2), "a Pair"),
        (Exception("x"), "an Exception"),
        (np.array([None]), "a ndarray of object"),
        (np.zeros(1, [("x", "f4")]), "a ndarray of"),
        (np.frombuffer(bytearray(8)), "a ndarray over memory that is not NumPy's"),
        (np.ma.zeros(1), "a MaskedArray"),
        (np.longdouble(1), "a longdouble"),
        (random.SystemRandom(), "a SystemRandom"),
        (0x7F0000001000, "an integer that may be an address"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_attribute_is_named_when_its_state_cannot_be_read(value: Any, kind: str) -> None:
    env = TimeLimit(HolderEnv(world=Thing(parts=[{"x": value}])), 3)
    with pytest.raises(
        UnreadableStateError, match=rf"attribute \"world.parts\[0\]\['x'\]\" is {kind}"
    ):
        snapshot_env(env)


def test_a_state_is_refused_when_it_is_nested_without_end() -> None:
    chain: list[Any] = []
    for _ in range(100_000):
        chain = [chain]
    with pytest.raises(UnreadableStateError, match="too deeply"):
        snapshot_env(HolderEnv(chain=chain))


def test_attributes_are_removed_when_the_state_does_not_have_them() -> None:
    other = moved(HolderEnv(old=1), HolderEnv(old=2, new=3))
    assert other.old == 1
    assert not hasattr(other, "new")


def _one() -> None: ...


def _two() -> None: ...


def test_constants_stay_when_a_state_is_taken() -> None:
    log = logging.getLogger("world")
    held = {"call": _one, "log": log, "kind": Thing, "dtype": np.dtype("f4"), "io": io}
    held |= {"add": np.add, "mean": np.mean, "seed": np.random.seed, "draw": random.random}
    held |= {"method": Thing().__repr__, "len": len, "part": functools.partial(_one)}
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.unwrapped.held = held  # type: ignore[attr-defined]
    other = gymnasium.make("CartPole-v1", disable_env_checker=True)
    other.unwrapped.held = dict(held)  # type: ignore[attr-defined]
    spec = other.spec
    assert env.spec is not None
    fresh = gymnasium.make("CartPole-v1", disable_env_checker=True)
    fresh.unwrapped.held = dict(held)  # type: ignore[attr-defined]
    env.reset(seed=1)
    other.reset(seed=2)
    moved(env, other)
    assert other.unwrapped.held == held  # type: ignore[attr-defined]
    assert other.spec == spec
    assert other.unwrapped.spec is not None
    # one whose wrappers were not asked for their specification yet
    assert moved(env, fresh).spec == env.spec


@pytest.mark.parametrize(
    ("before", "now", "complaint"),
    [
        (_one, _two, "value was a _one, now there is _two"),
        (Thing(), HolderEnv(), "value was a Thing, now there is HolderEnv"),
        (Thing(), None, "value was a Thing, now there is NoneType"),
        ([Thing()], [], r"value\[0\] was a Thing, now there is nothing"),
        ({"a": Thing()}, {}, r"value\['a'\] was a Thing, now there is nothing"),
        (Colour.RED, None, "value was a Colour, now there is NoneType"),
        (spaces.Discrete(2), spaces.Box(0, 1), "value was a Discrete, now there is Box"),
    ],
)
def test_a_state_is_refused_when_nothing_of_its_kind_stands_there(
    before: Any, now: Any, complaint: str
) -> None:
    with pytest.raises(StateError, match=complaint):
        moved(HolderEnv(value=before), HolderEnv(value=now))


class OwnStateEnv(CountdownEnv):
    """Has something that nobody can read, and speaks for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = threading.Lock()
        self.lives = 3

    def get_state(self) -> Any:
        return {"lives": np.array(self.lives), "rng": self.np_random.bit_generator.state}

    def set_state(self, state: Any) -> None:
        self.lives = int(state["lives"])
        self.np_random.bit_generator.state = state["rng"]


class TiredWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Speaks for itself, and for itself alone."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.handle = threading.Lock()
        self.energy = 9

    def get_state(self) -> Any:
        return self.energy

    def set_state(self, state: Any) -> None:
        self.energy = state


def test_layers_speak_for_themselves_when_they_can() -> None:
    env, other = (
        TiredWrapper(TimeLimit(OwnStateEnv(), 5)),
        TiredWrapper(TimeLimit(OwnStateEnv(), 5)),
    )
    env.reset(seed=1)
    other.reset(seed=2)
    env.step(0)
    env.energy, env.unwrapped.lives = 4, 1  # type: ignore[attr-defined]
    moved(env, other)
    assert (other.energy, other.unwrapped.lives) == (4, 1)  # type: ignore[attr-defined]
    assert other.env._elapsed_steps == 1  # type: ignore[attr-defined]
    assert other.unwrapped.np_random.random() == env.unwrapped.np_random.random()


class HalfOwnStateEnv(CountdownEnv):
    """Can only be set, as MuJoCo's environments: its attributes are read."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = 3

    def set_state(self, state: Any) -> None:
        raise AssertionError("it cannot give one")


def test_attributes_are_read_when_a_layer_has_half_of_the_pair() -> None:
    env, other = HalfOwnStateEnv(), HalfOwnStateEnv()
    env.lives = 1
    assert moved(env, other).lives == 1


class BrokenStateEnv(OwnStateEnv):
    def get_state(self) -> Any:
        return 1 / self.lives

    def set_state(self, state: Any) -> None:
        raise RuntimeError(f"no {state}")


def test_the_layer_is_named_when_its_own_methods_fail() -> None:
    env = BrokenStateEnv()
    tree = snapshot_env(env)
    with pytest.raises(StateError, match=r"BrokenStateEnv.set_state\(\) failed: RuntimeError: no"):
        restore_env(env, tree)
    env.lives = 0
    with pytest.raises(UnreadableStateError, match=r"get_state\(\) failed: ZeroDivisionError"):
        snapshot_env(env)


class PickledFreshEnv(CountdownEnv, EzPickle):
    """Comes back as new from a pickle or a copy, as many environments over C libraries do."""

    def __init__(self) -> None:
        CountdownEnv.__init__(self)
        EzPickle.__init__(self)
        self.lives = 3


def test_the_true_state_comes_back_when_a_pickle_would_be_fresh() -> None:
    env, other = PickledFreshEnv(), PickledFreshEnv()
    env.lives = 1
    assert moved(env, other).lives == 1


def _places(node: Any) -> list[Any]:
    children = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, child in list(children):
        found.append((node, key))
        if isinstance(child, (dict, list)):
            found += _places(child)
    return found


@pytest.mark.parametrize("garbage", [None, -1, 2**70, "x", [], {}, {"kind": "same", "id": 0}])
def test_only_a_state_error_is_raised_when_a_state_is_damaged(garbage: Any) -> None:
    def make() -> Any:
        values = [value for value in PLAIN if not isinstance(value, enum.Enum)]
        things = {name: made(1) for name, made in GENERATORS.items()}
        env = TimeLimit(
            HolderEnv(plain=values, arrays=ARRAYS[:4], rngs=things, t=Thing(c=Colour.RED)), 3
        )
        env.reset(seed=1)
        return env

    tree, num_refused = snapshot_env(make()), 0
    for parent, key in _places(tree):
        kept, parent[key] = parent[key], garbage
        try:
            restore_env(make(), tree)
        except StateError:
            num_refused += 1
        parent[key] = kept
    restore_env(make(), tree)
    assert num_refused > 50


@pytest.mark.parametrize(
    "tree", [None, {}, [], {"kind": "array", "order": "C", "data": np.zeros(1)}]
)
def test_a_state_is_refused_when_it_is_not_of_an_environment(tree: Any) -> None:
    with pytest.raises(StateError, match="not the state of an environment"):
        restore_env(HolderEnv(), tree)
