"""Nested data: every leaf is found once, and nothing but leaves changes."""

from collections import OrderedDict

from metta.nested import leaves, map_leaves


def test_leaves_have_their_paths_when_data_is_nested() -> None:
    data = {"a": [1, (2, {})], 3: OrderedDict(b=None), "c": "text"}
    found = [(("a", 0), 1), (("a", 1, 0), 2), ((3, "b"), None), (("c",), "text")]
    assert list(leaves(data)) == found
    assert list(leaves(5)) == [((), 5)]


def test_what_lies_deeper_is_a_leaf_when_there_is_a_limit() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert list(leaves(endless, max_depth=2)) == [((0, 0), endless)]


def test_containers_keep_their_kind_when_leaves_are_mapped() -> None:
    data = {"a": [1, (2,)], "b": OrderedDict(c=3)}
    assert map_leaves(data, lambda leaf: leaf + 1) == {"a": [2, (3,)], "b": {"c": 4}}
    assert type(map_leaves(data, str)["b"]) is dict
