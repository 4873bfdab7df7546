"""Numbers that training cannot go on with never reach a checkpoint."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.errors import NonFiniteError

__all__ = ["require_finite"]

_LEARNER = ("policy", "optimizer")
_LOSSES = "loss/"


def require_finite(snapshot: Mapping[str, Mapping[str, Any]], epoch: int) -> None:
    """`NonFiniteError` where NaN or infinity is in a tensor of what learns: policy, optimizer, losses.

    Other components, environments for example, may hold infinities that mean something.
    """
    for name, part in snapshot.items():
        if name in _LEARNER or name.startswith(_LOSSES):
            for where, tensor in _tensors_in(part["state"], ""):
                if tensor.is_floating_point() and not _is_finite(tensor):
                    raise NonFiniteError(
                        f"epoch {epoch} is not saved: {where or 'the tensor'} of {name!r} holds NaN or "
                        "infinity; go on from an older checkpoint, with a smaller learning rate for example"
                    )


def _is_finite(tensor: Tensor) -> bool:
    # a sum is much faster, and finite only where all are; it may also overflow, which says nothing
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _tensors_in(state: Any, where: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield where, state
    elif isinstance(state, np.ndarray | np.generic) and np.issubdtype(state.dtype, np.floating):
        yield where, torch.from_numpy(np.atleast_1d(state))
    elif isinstance(state, Mapping | list | tuple):
        items = state.items() if isinstance(state, Mapping) else enumerate(state)
        for key, item in items:
            yield from _tensors_in(item, f"{where}/{key}" if where else str(key))
