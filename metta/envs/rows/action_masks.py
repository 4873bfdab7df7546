"""Action masks: how long they are, how they are split, and what makes one unusable."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import EnvError

__all__ = ["MaskLayout", "mask_layout_of"]


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
