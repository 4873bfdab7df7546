import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from metta.errors import StateError
from metta.stateful import NamedState, Stateful, StateRegistry, digest_of


class Counter:
    state_version = 1

    def __init__(self, name: str = "counter", count: int = 0) -> None:
        self.state_name, self.count = name, count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


def registry_of(*parts: Stateful) -> StateRegistry:
    registry = StateRegistry()
    for part in parts:
        registry.add(part)
    return registry


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def same(first: Any, second: Any) -> bool:
    """Equal and of the same types all the way down: 1, 1.0, True and -0.0, 0.0 are told apart."""
    return repr(_ordered(first)) == repr(_ordered(second))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


@given(PLAIN, PLAIN)
def test_digests_differ_exactly_when_plain_values_differ(first: Any, second: Any) -> None:
    assert (digest_of(first) == digest_of(second)) == same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 2], [12]),
        ([1, 2], [[1], 2]),
        ([[], [1]], [[[]], 1]),
        ({"a": 1}, {"b": 1}),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        ({1: "x"}, {"1": "x"}),
        ("1", 1),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (None, "null"),
        ("", []),
        ([], {}),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1), torch.zeros(())),
        (torch.zeros(2), [torch.zeros(1), torch.zeros(1)]),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2, dtype=torch.float32), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.zeros(2, dtype=torch.int8), torch.zeros(2, dtype=torch.bool)),
        (np.zeros(2, np.int64), np.zeros(2, np.uint64)),
    ],
)
def test_digests_differ_when_structure_type_or_shape_differs(first: Any, second: Any) -> None:
    assert digest_of(first) != digest_of(second)


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32,
     torch.float64],
)  # fmt: skip
def test_the_digest_changes_when_any_single_bit_is_flipped(dtype: torch.dtype) -> None:
    values = torch.arange(1, 4).to(dtype)
    original = digest_of({"x": values})
    num_bytes = values.numel() * values.element_size()
    found = set()
    for bit in range(num_bytes * 8):
        flipped = values.clone()
        flipped.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        found.add(digest_of({"x": flipped}))
    assert len(found) == num_bytes * 8
    assert original not in found


def test_the_digest_is_equal_when_only_the_key_order_differs() -> None:
    first = {"a": 1, "b": {"x": torch.ones(2), "y": None}}
    second = {"b": {"y": None, "x": torch.ones(2)}, "a": 1}
    assert digest_of(first) == digest_of(second)


def test_the_digest_is_equal_when_only_the_memory_layout_differs() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert digest_of(values) == digest_of(values.t().contiguous().t())
    assert digest_of(values.bfloat16()) == digest_of(values.bfloat16().t().contiguous().t())
    assert digest_of(values) == digest_of(values.numpy())


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", np.array([object()]), {"a": [len]}])
def test_a_state_error_is_raised_when_a_value_has_no_digest(value: Any) -> None:
    with pytest.raises(StateError, match="has no digest"):
        digest_of(value)


def test_components_are_stateful_when_they_have_the_four_members() -> None:
    assert isinstance(Counter(), Stateful)
    assert not isinstance(nn.Linear(1, 1), Stateful)


def test_names_keep_their_order_when_components_are_registered() -> None:
    assert registry_of(Counter("b"), Counter("a")).names() == ["b", "a"]


def test_registration_fails_when_a_name_is_taken() -> None:
    registry = registry_of(Counter("clock"))
    with pytest.raises(StateError, match="two components are called 'clock'"):
        registry.add(Counter("clock"))


def test_state_comes_back_when_a_snapshot_is_restored() -> None:
    layer, counter = nn.Linear(2, 2), Counter(count=3)
    registry = registry_of(counter, NamedState("layer", layer))
    before, snapshot = registry.digest(), copy.deepcopy(registry.snapshot())
    counter.count = 4
    with torch.no_grad():
        layer.weight += 1
    assert registry.digest() != before
    registry.restore(snapshot)
    assert registry.digest() == before
    assert counter.count == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a"], r"missing \['b'\], unknown nothing"), (["a", "b", "c"], r"missing nothing, unknown \['c'\]")],
)  # fmt: skip
def test_restore_is_refused_when_the_components_differ(names: list[str], message: str) -> None:
    saved = registry_of(*(Counter(name, 9) for name in names)).snapshot()
    parts = [Counter("a"), Counter("b")]
    with pytest.raises(StateError, match=message):
        registry_of(*parts).restore(saved)
    assert [part.count for part in parts] == [0, 0]


def test_nothing_is_restored_when_one_version_differs() -> None:
    parts = [Counter("a"), Counter("b")]
    registry = registry_of(*parts)
    saved = registry_of(Counter("a", 9), Counter("b", 9)).snapshot()
    saved["b"]["version"] = 2
    with pytest.raises(StateError, match="'b' has version 2, this code reads 1"):
        registry.restore(saved)
    assert parts[0].count == 0


def test_the_digest_changes_when_only_the_version_changes() -> None:
    counter = Counter()
    before = registry_of(counter).digest()
    counter.state_version = 2
    assert registry_of(counter).digest() != before


def test_a_component_takes_the_place_of_its_namesake_when_it_is_replaced() -> None:
    registry = StateRegistry()
    first, second = NamedState("part", _Holder(1)), NamedState("part", _Holder(2))
    registry.add(first)
    registry.replace(second)
    assert registry.snapshot()["part"]["state"] == {"value": 2}
    with pytest.raises(StateError, match="no component is called 'other'; there are \\['part'\\]"):
        registry.replace(NamedState("other", _Holder(3)))


class _Holder:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}
