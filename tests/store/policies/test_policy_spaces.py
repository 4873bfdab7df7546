"""Spaces return from their data as they were; data that means no good is refused before memory is taken."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from metta.errors import SpaceError
from metta.spaces import obs_spec_of
from metta.store.policies import spaces as policy_spaces
from metta.store.policies.spaces import MAX_ELEMENTS, describe_space, space_from
from metta.untrusted.json_files import parse_json

SPACES: dict[str, spaces.Space[Any]] = {
    "unbounded": spaces.Box(-np.inf, np.inf, (4,)),
    "bounds of each": spaces.Box(np.float32([-1.1, -np.inf]), np.float32([0.3, 7])),
    "scalar": spaces.Box(0, 1, (), np.float16),
    "double": spaces.Box(np.array([0.1, -1e300]), np.array([0.2, 1e300]), dtype=np.float64),
    "image": spaces.Box(0, 255, (84, 84, 4), np.uint8),
    "bounds of a channel": spaces.Box(
        np.zeros((5, 6, 3), np.int16), np.broadcast_to(np.int16([1, 2, 3]), (5, 6, 3))
    ),
    "booleans": spaces.Box(0, 1, (3,), bool),
    "empty": spaces.Box(0, 1, (0, 3)),
    "discrete": spaces.Discrete(3, start=-1),
    "narrow discrete": spaces.Discrete(5, dtype=np.uint8),
    "multi": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, -2]]),
    "narrow multi": spaces.MultiDiscrete([2, 2, 2], dtype=np.int8),
    "binary": spaces.MultiBinary(5),
    "binary grid": spaces.MultiBinary([2, 3]),
    "nested": spaces.Dict(
        [
            ("z", spaces.Box(-1, 1, (2,))),
            ("a", spaces.Tuple([spaces.Discrete(2), spaces.Dict(inner=spaces.MultiBinary(2))])),
            ("action_mask", spaces.MultiBinary(3)),
        ]
    ),
}  # fmt: skip


def returned(space: spaces.Space[Any]) -> spaces.Space[Any]:
    return space_from(parse_json(json.dumps(describe_space(space)), allow_nan=True))


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_the_same_when_it_returns_from_json(name: str) -> None:
    space, found = SPACES[name], returned(SPACES[name])
    assert found == space
    assert type(found) is type(space)
    assert found.dtype == space.dtype
    if isinstance(space, spaces.Box):  # equality of boxes allows rounding
        assert np.array_equal(found.low, space.low)
        assert np.array_equal(found.high, space.high)


def test_the_order_of_leaves_is_kept_when_keys_are_not_sorted() -> None:
    space = SPACES["nested"]
    assert obs_spec_of(returned(space)) == obs_spec_of(space)
    assert [leaf.key for leaf in obs_spec_of(returned(space)).leaves] == ["z", "a/0", "a/1/inner"]


def test_an_image_has_two_numbers_when_its_bounds_are_the_same_everywhere() -> None:
    assert len(json.dumps(describe_space(SPACES["image"]))) < 200


@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    dtype=st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint16"]),
    data=st.data(),
)
def test_every_bound_returns_when_boxes_are_any(shape: list[int], dtype: str, data: Any) -> None:
    kind, count = np.dtype(dtype), int(np.prod(shape))
    if kind.kind == "f":
        numbers = st.floats(width=8 * kind.itemsize, allow_nan=False)
    else:
        numbers = st.integers(-100 if kind.kind == "i" else 0, 100)
    first, second = (
        np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)), kind).reshape(shape)
        for _ in range(2)
    )
    space = spaces.Box(np.minimum(first, second), np.maximum(first, second), dtype=kind.type)
    found = returned(space)
    assert isinstance(found, spaces.Box)
    assert np.array_equal(found.low, space.low)
    assert np.array_equal(found.high, space.high)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict(a=spaces.Graph(spaces.Discrete(2), None)),
        spaces.Box(np.linspace(0, 1, 40_000), np.full(40_000, 2.0), dtype=np.float64),
    ],
    ids=["text", "sequence", "graph", "many bounds"],
)
def test_a_space_error_is_raised_when_a_space_has_no_description(space: Any) -> None:
    with pytest.raises(SpaceError):
        describe_space(space)


def test_a_space_error_is_raised_when_a_space_is_nested_deeper_than_files_may_be() -> None:
    space: spaces.Space[Any] = spaces.Discrete(2)
    for _ in range(12):
        space = spaces.Tuple([space])
    with pytest.raises(SpaceError, match="deeper than 8"):
        describe_space(space)


def box(**changes: Any) -> dict[str, Any]:
    one = {"shape": [1], "values": [0.0]}
    return {"kind": "Box", "shape": [2], "dtype": "float32", "low": one, "high": one} | changes


DEEP: Any = {"kind": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
for _ in range(12):
    DEEP = {"kind": "Tuple", "spaces": [DEEP]}

HOSTILE: dict[str, Any] = {
    "nothing": None,
    "a list": [],
    "no kind": {},
    "a kind that is a list": {"kind": []},
    "code": {"kind": "os.system", "command": "true"},
    "a class": {"kind": "gymnasium.spaces.Box"},
    "a field more": box(seed=1),
    "a field less": {"kind": "Box", "shape": [2]},
    "a huge shape": box(shape=[2**40]),
    "a huge product": box(shape=[2**20, 2**20]),
    "a negative size": box(shape=[-1]),
    "a size that is no integer": box(shape=[True]),
    "many dimensions": box(shape=[1] * 40),
    "an object type": box(dtype="object"),
    "a type of text": box(dtype="U1000000000"),
    "a type that is a list": box(dtype=["float32"]),
    "complex": box(dtype="complex64"),
    "bounds that are text": box(low={"shape": [1], "values": ["0"]}),
    "bounds that are nothing": box(low=None),
    "bounds that are NaN": box(low={"shape": [1], "values": [float("nan")]}),
    "bounds beyond the type": box(high={"shape": [1], "values": [1e300]}),
    "bounds of another shape": box(low={"shape": [3], "values": [0.0] * 3}),
    "bounds of another rank": box(low={"shape": [], "values": [0.0]}),
    "fewer bounds": box(low={"shape": [2], "values": [0.0]}),
    "bounds crossed": box(low={"shape": [1], "values": [1.0]}),
    "a bound too large for bytes": box(dtype="uint8", high={"shape": [1], "values": [300]}),
    "discrete without values": {"kind": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
    "discrete beyond its type": {"kind": "Discrete", "n": 300, "start": 0, "dtype": "uint8"},
    "discrete of a float": {"kind": "Discrete", "n": 2.0, "start": 0, "dtype": "int64"},
    "discrete in floats": {"kind": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
    "many parts": {"kind": "MultiBinary", "shape": [2**20], "flat": True},
    "binary that is not flat": {"kind": "MultiBinary", "shape": [2, 2], "flat": True},
    "empty parts": {
        "kind": "MultiDiscrete", "shape": [1], "dtype": "int64",
        "nvec": {"shape": [1], "values": [0]}, "start": {"shape": [1], "values": [0]},
    },
    "too deep": DEEP,
    "a key twice": {"kind": "Dict", "keys": ["a", "a"], "spaces": [box(), box()]},
    "a key that is a number": {"kind": "Dict", "keys": [1], "spaces": [box()]},
    "keys without spaces": {"kind": "Dict", "keys": ["a"], "spaces": []},
    "spaces that are none": {"kind": "Tuple", "spaces": 3},
    "very many spaces": {"kind": "Tuple", "spaces": [box()] * 2000},
    "spaces of spaces": {"kind": "Tuple", "spaces": [{"kind": "Tuple", "spaces": [box()] * 900}] * 3},
    "together too large": {"kind": "Tuple", "spaces": [box(shape=[MAX_ELEMENTS])] * 2},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_space_error_is_raised_when_data_describes_no_space(name: str) -> None:
    with pytest.raises(SpaceError) as raised:
        space_from(HOSTILE[name])
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("name", ["a huge shape", "a huge product", "together too large"])
def test_no_array_is_made_when_the_sizes_are_beyond_the_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(policy_spaces, "_array", lambda *given: made.append(given))
    with pytest.raises(SpaceError, match=r"is not a shape|are the limit"):
        space_from(HOSTILE[name])
    assert made == []
