"""Rows in shared memory: one anonymous block that the trainer and its workers see as arrays.

The block is memory of a file that is already deleted, so nothing remains however a process ends.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from metta.envs.rows.gym_adapter import RowArrays
from metta.envs.rows.row_spec import RowSpec
from metta.envs.vec_env import ObsArrays

__all__ = ["SharedBlock", "SharedRows", "allocate_block"]

SharedBlock = Any
"""A `multiprocessing` raw array of bytes."""

_ALIGNMENT = 64
_Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


@dataclass(frozen=True)
class SharedRows:
    """Arrays ``[num_rows, ...]`` over one block; every process builds its own views of it."""

    arrays: RowArrays
    obs: ObsArrays
    actions: np.ndarray
    seeds: np.ndarray
    next_tasks: np.ndarray

    @classmethod
    def over(cls, block: SharedBlock, spec: RowSpec, num_rows: int) -> "SharedRows":
        """The views that this layout has in every process."""
        raw = np.frombuffer(block, np.uint8)
        views: dict[str, np.ndarray] = {}
        start = 0
        for name, (shape, dtype) in _layout(spec, num_rows).items():
            size = _num_bytes(shape, dtype)
            views[name] = raw[start : start + size].view(dtype).reshape(shape)
            start += _aligned(size)
        arrays = RowArrays(
            rewards=views["rewards"],
            terminated=views["terminated"],
            truncated=views["truncated"],
            valid=views["valid"],
            starts=views["starts"],
            action_mask=views.get("action_mask"),
            final_obs=_with_prefix(views, "final:"),
        )
        return cls(arrays, _with_prefix(views, "obs:"), views["actions"], views["seeds"],
                   views["next_tasks"])  # fmt: skip


def allocate_block(context: BaseContext, spec: RowSpec, num_rows: int) -> SharedBlock:
    """A zeroed block that is large enough for these rows."""
    layout = _layout(spec, num_rows).values()
    size = sum(_aligned(_num_bytes(shape, dtype)) for shape, dtype in layout)
    return context.RawArray(ctypes.c_ubyte, size)


def _layout(spec: RowSpec, num_rows: int) -> _Layout:
    flag = np.dtype(np.bool_)
    action_dtype = np.dtype(spec.action_space.dtype)
    layout: _Layout = {
        "seeds": ((num_rows,), np.dtype(np.int64)),
        "next_tasks": ((num_rows,), np.dtype(np.int32)),
        "actions": ((num_rows, *(spec.action_space.shape or ())), action_dtype),
        "rewards": ((num_rows,), np.dtype(np.float32)),
    }
    layout |= dict.fromkeys(("terminated", "truncated", "valid", "starts"), ((num_rows,), flag))
    if spec.mask_size:
        layout["action_mask"] = ((num_rows, spec.mask_size), flag)
    for leaf in spec.obs_spec.leaves:
        layout[f"obs:{leaf.key}"] = ((num_rows, *leaf.shape), leaf.dtype)
        layout[f"final:{leaf.key}"] = ((num_rows, *leaf.shape), leaf.dtype)
    return layout


def _with_prefix(views: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): view for name, view in views.items() if name.startswith(prefix)
    }


def _num_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
