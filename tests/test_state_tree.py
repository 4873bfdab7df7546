"""Trees of state: every type and bit comes back."""

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from metta.errors import StateError
from metta.state_tree import copy_state, pack_state, unpack_state
from metta.stateful import digest_of


def returned(tree: Any) -> Any:
    packed, tensors = pack_state(tree)
    return unpack_state(json.loads(json.dumps(packed, allow_nan=False)), tensors)


LEAVES = {
    "float": torch.randn(3, 2),
    "transposed": torch.randn(3, 2).T,
    "bfloat16": torch.randn(5).bfloat16(),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 4),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
    "zero_dim_array": np.array(2.5),
    "numpy_scalar": np.float64(0.1),
    "numpy_bool": np.bool_(True),
    "uint64": np.array([2**64 - 1], np.uint64),
    "int": 2**100,
    "float_value": 0.1,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "text": "äöü\n\x00",
    "true": True,
    "none": None,
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_value_returns_bit_for_bit_when_it_is_packed(name: str) -> None:
    value = LEAVES[name]
    found = returned({"x": [value]})["x"][0]
    assert digest_of(found) == digest_of(value)
    if isinstance(value, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == value.dtype


def test_nesting_returns_when_keys_are_integers_or_look_like_tags() -> None:
    tree = {
        "state": {0: {"step": torch.tensor(1.0)}, 1: {}},
        "groups": [{"betas": (0.9, 0.999), "params": [0, 1]}],
        "$tensor": "no tag",
        "mixed": {1: "integer", "1": "string"},
        "one": {"$float": 3},
        "": [],
    }
    found = returned(tree)
    assert digest_of(found) == digest_of(tree)
    assert found["groups"][0]["betas"] == (0.9, 0.999)
    assert list(found["state"]) == [0, 1]
    assert found["mixed"] == tree["mixed"]


def test_optimizer_state_loads_again_when_it_was_packed() -> None:
    weights = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
    optimizer = torch.optim.Adam(weights)
    sum(weight.square().sum() for weight in weights).backward()
    optimizer.step()
    other = torch.optim.Adam([torch.nn.Parameter(weight.detach()) for weight in weights])
    other.load_state_dict(returned(optimizer.state_dict()))
    assert digest_of(other.state_dict()) == digest_of(optimizer.state_dict())


def test_tensors_have_memory_of_their_own_when_they_were_views_of_one() -> None:
    flat = torch.arange(6.0)
    tree = OrderedDict(a=flat[:3], b=flat[3:], c=[np.ones(2)])
    copied, (_, packed) = copy_state(tree), pack_state(tree)
    storages = {tensor.untyped_storage().data_ptr() for tensor in packed.values()}
    assert len(storages) == 3
    flat.zero_()
    tree["c"][0][:] = 0
    assert copied["a"].tolist() == [0.0, 1.0, 2.0]
    assert copied["c"][0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "/x/0 is a set"),
        (b"bytes", "/x/0 is a bytes"),
        (
            torch.zeros(2, dtype=torch.complex64),
            "/x/0 is a torch.strided tensor of torch.complex64",
        ),
        (torch.zeros(2).to_sparse(), "/x/0 is a torch.sparse_coo tensor"),
        (np.array(["a"]), "/x/0 is an array of <U1"),
        (np.array([None]), "/x/0 is an array of object"),
        ({1.5: 0}, "/x/0 has the key 1.5"),
        ({True: 0}, "/x/0 has the key True"),
    ],
)
def test_a_state_error_names_the_place_when_a_value_cannot_be_saved(
    value: Any, message: str
) -> None:
    with pytest.raises(StateError, match=message):
        pack_state({"x": [value]})


def test_an_unknown_tag_is_refused_when_a_tree_is_read() -> None:
    with pytest.raises(KeyError, match="unknown tag"):
        unpack_state({"$code": "x"}, {})
    with pytest.raises(KeyError):
        unpack_state({"$tensor": "missing"}, {})


@pytest.mark.parametrize(
    "packed",
    [
        {"$tensor": ["a"]}, {"$tensor": None}, {"$array": {}}, {"$float": 10**50}, {"$float": "x"},
        {"$items": 3}, {"$items": [3]}, {"$items": [[[], 1]]}, {"$items": [["a", 1, 2]]}, {"$tuple": 3},
    ],
)  # fmt: skip
def test_only_key_type_and_value_errors_come_when_a_tree_is_of_another_making(packed: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        unpack_state({"x": [packed]}, {"a": torch.zeros(1)})


def depth_of(packed: Any) -> int:
    parts = (
        packed.values() if isinstance(packed, dict) else packed if isinstance(packed, list) else ()
    )
    return (1 if isinstance(packed, dict | list) else 0) + max(map(depth_of, parts), default=0)


@pytest.mark.parametrize(
    "wrap", [lambda x: {"a": x}, lambda x: {1: x}, lambda x: [x], lambda x: (x,)]
)
def test_what_is_packed_can_be_read_when_it_is_nested_deep(wrap: Any) -> None:
    tree: Any = torch.zeros(1)
    depths = [0]
    while depths[-1] < 26:
        tree = wrap(tree)
        packed, tensors = pack_state(tree)
        depths.append(depth_of(packed))
        assert digest_of(unpack_state(packed, tensors)) == digest_of(tree)
    deeper = wrap(wrap(wrap(wrap(tree))))
    assert depths[-1] <= 29  # readers take 32, and a manifest takes one
    with pytest.raises(StateError, match="nested too deep"):
        pack_state(deeper)


def test_a_state_error_is_raised_when_a_state_holds_itself() -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(StateError, match="holds itself"):
        pack_state(state)


def test_a_copy_is_refused_when_a_value_is_no_state() -> None:
    with pytest.raises(StateError, match="is a set"):
        copy_state({"x": {1}})
