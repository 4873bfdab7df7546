"""Sums in one order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metta.ops.trees import tree_reduce


def join(left: str, right: str) -> str:
    return f"({left}{right})"


@pytest.mark.parametrize(
    ("parts", "tree"),
    [
        ("a", "a"), ("ab", "(ab)"), ("abc", "((ab)c)"), ("abcd", "((ab)(cd))"),
        ("abcdef", "(((ab)(cd))(ef))"),
    ],
)  # fmt: skip
def test_neighbours_are_combined_first(parts: str, tree: str) -> None:
    assert tree_reduce(parts, join) == tree


@given(st.integers(1, 40), st.integers(0, 4))
def test_a_block_may_be_reduced_first_when_it_is_a_subtree(num_parts: int, power: int) -> None:
    parts, size = [f"{n}," for n in range(num_parts)], 2**power
    blocks = [tree_reduce(parts[at : at + size], join) for at in range(0, num_parts, size)]
    assert tree_reduce(blocks, join) == tree_reduce(parts, join)
