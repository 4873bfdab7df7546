"""Reductions in one fixed order, so that their rounding does not depend on who computes which part."""

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["tree_reduce"]

T = TypeVar("T")


def tree_reduce(parts: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """All parts combined by a binary tree over their numbers: neighbours first, then neighbouring pairs.

        ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))

    A last part without a neighbour moves up as it is. A block of 2^k parts that begins at a multiple of 2^k
    is a subtree: reducing it first changes nothing.
    """
    level = list(parts)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [combine(left, right) for left, right in pairs] + level[len(level) // 2 * 2 :]
    return level[0]
