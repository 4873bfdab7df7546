"""Actions drawn at random from those that are legal."""

from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.rows.action_masks import mask_layout_of

__all__ = ["draw_action"]

_WIDEST = 1e6
"""Bounds further apart than this are none: actions are then drawn as close to zero as they allow."""


def draw_action(
    space: spaces.Space[Any], mask: np.ndarray | None, generator: np.random.Generator
) -> np.ndarray:
    """One action of a supported action space, in memory of its own; `mask` ``[M]`` says which are legal."""
    if isinstance(space, spaces.Box):
        return _draw_point(space, generator)
    layout = mask_layout_of(space)
    assert layout is not None  # every supported space but Box has one
    legal = np.ones(layout.size, np.bool_) if mask is None else mask
    parts = np.split(legal, layout.part_starts[1:])
    values = [generator.choice(np.flatnonzero(part)) for part in parts]
    first = getattr(space, "start", 0)
    return np.asarray(np.reshape(values, space.shape or ()) + first, space.dtype)


def _draw_point(space: spaces.Box, generator: np.random.Generator) -> np.ndarray:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(over="ignore"):
        width = high - low
    near_zero = np.clip(0.0, low, high) + generator.standard_normal(space.shape)
    narrow = width < _WIDEST
    inside = np.where(narrow, low, 0) + generator.random(space.shape) * np.where(narrow, width, 0)
    drawn = np.where(narrow, inside, near_zero)
    if np.dtype(space.dtype).kind in "iu":
        drawn = np.rint(drawn)
    return np.clip(drawn, low, high).astype(space.dtype)
