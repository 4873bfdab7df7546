"""Action masks: how long they are, how they are split, what makes one unusable; and actions at random."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import EnvError

__all__ = ["MaskLayout", "draw_action", "mask_layout_of"]

_WIDEST = 1e6
"""Bounds further apart than this are none: actions are then drawn as close to zero as they allow."""


@dataclass(frozen=True)
class MaskLayout:
    """Entries of the mask of one row: the legal values of each action part, one part after another."""

    part_sizes: tuple[int, ...]
    """Number of values of each action part: (n,) for `Discrete`, nvec for `MultiDiscrete`, and
    (2, 2, ...) for `MultiBinary`, whose pairs are (may be 0, may be 1)."""

    @property
    def size(self) -> int:
        """Number of entries (M)."""
        return sum(self.part_sizes)

    @property
    def part_starts(self) -> np.ndarray:
        """First entry of each part."""
        return np.cumsum((0, *self.part_sizes[:-1]))

    def write(self, mask: Any, out: np.ndarray) -> None:
        """Copy one row's mask (an array, or one array per action part) into `out` ``[M]`` bool."""
        flat = mask
        if type(mask) is not np.ndarray or mask.ndim != 1:
            parts = mask if isinstance(mask, (tuple, list)) else (mask,)
            flat = np.concatenate([np.ravel(part) for part in parts]) if parts else np.empty(0)
        if flat.shape != out.shape or flat.dtype.kind not in "biuf":
            raise EnvError(
                f"the action mask has {flat.size} entries of {flat.dtype}, but the action space "
                f"needs {self.size} booleans (parts {self.part_sizes}); fix the mask"
            )
        out[:] = flat
        if not self.leaves_a_choice(out).all():
            raise EnvError(
                f"the action mask {out.astype(int).tolist()} leaves no legal value for an action part "
                f"(parts {self.part_sizes}); end the episode where no action is legal"
            )

    def leaves_a_choice(self, masks: np.ndarray) -> np.ndarray:
        """Whether each part has a legal value: ``[..., M]`` -> ``[..., parts]`` bool."""
        if len(self.part_sizes) == 1:
            return np.asarray(masks.any(axis=-1, keepdims=True))
        return np.asarray(np.logical_or.reduceat(masks, self.part_starts, axis=-1))


def mask_layout_of(action_space: spaces.Space[Any]) -> MaskLayout | None:
    """The layout of this action space's masks, or None where actions cannot be masked."""
    if isinstance(action_space, spaces.Discrete):
        return MaskLayout((int(action_space.n),))
    if isinstance(action_space, spaces.MultiDiscrete):
        return MaskLayout(tuple(int(n) for n in action_space.nvec.ravel()))
    if isinstance(action_space, spaces.MultiBinary):
        return MaskLayout((2,) * int(np.prod(action_space.shape)))
    return None


def draw_action(
    space: spaces.Space[Any], mask: np.ndarray | None, generator: np.random.Generator
) -> np.ndarray:
    """One action of a supported action space, as a copy; `mask` ``[M]`` marks the legal ones."""
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
