"""Refuses to save NaN and infinity, with which training could not continue."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.errors import NonFiniteError
from metta.nested import leaves

__all__ = ["FiniteSnapshot", "non_finite", "require_finite"]

_CHECKED = ("policy", "optimizer", "collector")
_LOSSES = "loss/"


class FiniteSnapshot(dict[str, Any]):
    """A snapshot that `require_finite` has checked, with the policy that is saved beside it."""


def require_finite(snapshot: Mapping[str, Mapping[str, Any]], epoch: int) -> FiniteSnapshot:
    """The snapshot, marked as checked; `NonFiniteError` if NaN or infinity is in what learns.

    That is the policy, the optimizer and losses; what is carried into the next rollout counts as well.
    Other components, environments for example, may hold infinities that mean something, and so may the
    single numbers of a loss.
    """
    for name, part in snapshot.items():
        is_loss = name.startswith(_LOSSES)
        if name.partition("/")[0] not in _CHECKED and not is_loss:
            continue
        for where, number in _numbers_in(part["state"]):
            if is_finite(number) or (is_loss and isinstance(number, float)):
                continue
            raise NonFiniteError(
                f"epoch {epoch} is not saved: {where or 'the tensor'} of {name!r} holds NaN or "
                "infinity; continue from an older checkpoint, with a smaller learning rate for example"
            )
    return FiniteSnapshot(snapshot)


def is_finite(number: Tensor | float) -> bool:
    """Whether a number, or every entry of a tensor, is neither NaN nor infinite."""
    if isinstance(number, float):
        return math.isfinite(number)
    if not number.is_floating_point():
        return True
    # a sum is much faster, and finite only if all are; it may also overflow, which proves nothing
    return math.isfinite(number.sum().item()) or bool(number.isfinite().all())


def non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors with NaN or infinity in them."""
    return [name for name, tensor in tensors.items() if not is_finite(tensor)]


def _numbers_in(state: Any) -> Iterator[tuple[str, Tensor | float]]:
    for path, leaf in leaves(state):
        where = "/".join(map(str, path))
        if isinstance(leaf, Tensor | float) and not isinstance(leaf, np.generic):
            yield where, leaf
        elif isinstance(leaf, np.ndarray | np.generic) and np.issubdtype(leaf.dtype, np.floating):
            yield where, torch.from_numpy(np.atleast_1d(leaf))
