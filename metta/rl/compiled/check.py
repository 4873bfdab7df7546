"""Compiled code compared with Python: the same numbers from the same inputs, before its first use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor, nn

from metta.errors import DriverError
from metta.rl.compiled.cache import CompiledGraph
from metta.rl.compiled.trace import require_unchanged
from metta.rl.compiled.update_graph import NUM_REPORTS, TensorFunction
from metta.rl.learn.update import UpdateRules

__all__ = ["check_compiled", "state_put_back"]

_ROUNDING = 1e-4
"""Of sums in another order, relative to the largest number of the same kind."""
_MIN_LOSS = 1e-5
"""Absolute: the policy's loss and the KL divergence are rounding where an update begins."""
_MIN_GRADIENT = 1e-5
"""Of the largest gradient of all: below it a layer's gradients may be nothing but rounding."""
_CLEAR_GRADIENT = 1e-3
"""Of the layer's largest: from here on Adam's step does not depend on rounding."""
_STEP_SHARE = 5e-2
"""Of the largest step: how far steps of clear gradients may be apart."""


@contextmanager
def state_put_back(rules: UpdateRules) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Gives (buffer, its value before) of policy and losses; at the end everything is restored.

    Everything: buffers, and attributes of the policy's parts and of the losses that were assigned.
    """
    losses = [getattr(loss.fn, "__self__", loss.fn) for loss in rules.custom]
    roots = [root for root in (rules.policy, *losses) if not isinstance(root, ModuleType)]
    parts = [part for root in roots for part in _parts(root)]
    found = [getattr(part, "__dict__", None) for part in parts]
    attributes = [(own, own.copy()) for own in found if isinstance(own, dict)]
    modules = [part for part in parts if isinstance(part, nn.Module)]
    attributes += [(part._buffers, dict(part._buffers)) for part in modules]
    held = {id(buffer): buffer for part in modules for buffer in part.buffers(recurse=False)}
    pairs = [(buffer, buffer.clone()) for buffer in held.values()]
    try:
        yield pairs
    finally:
        for now, before in attributes:
            for name in now.keys() - before.keys():
                del now[name]
            now.update(before)
        with torch.no_grad():
            for buffer, value in pairs:
                buffer.copy_(value)


def _parts(root: object) -> list[object]:
    return [*root.modules()] if isinstance(root, nn.Module) else [root]


def check_compiled(
    function: TensorFunction, compiled: CompiledGraph, inputs: Sequence[Tensor]
) -> None:
    """Compare compiled code with what Python computes from the same inputs; neither result is kept.

    The inputs differ from those of the trace, so that a number wrongly taken as a constant shows.
    """
    inputs = _other_inputs(inputs, function.num_changed)
    fast, eager = ([tensor.clone() for tensor in inputs] for _ in range(2))
    kept = [tensor.clone() for tensor in compiled.held]
    with torch.enable_grad():
        wanted = function.call(*eager)
    require_unchanged(zip(compiled.held, kept, strict=True))
    found = compiled(fast)
    count = function.num_changed
    for mine, other in zip(found[:NUM_REPORTS], wanted[:NUM_REPORTS], strict=True):
        _require_close(mine, other, _limits_of_columns(other))
    _compare_layers(found[NUM_REPORTS:], wanted[NUM_REPORTS:])
    if count:
        _compare_adam(function.sizes, fast[:count], eager[:count], float(inputs[count]))
    require_unchanged(zip([*fast[count:], *eager[count:]], [*inputs[count:]] * 2, strict=True))


def _other_inputs(inputs: Sequence[Tensor], num_changed: int) -> list[Tensor]:
    """Samples in reverse order, and other parameters where they are among the inputs that change."""
    others, index = list(inputs), num_changed + 2 if num_changed else 0
    others[index] = others[index].flip(-1)
    if num_changed:
        others[0] = others[0] * 1.01
    return others


def _limits_of_columns(wanted: Tensor) -> Tensor:
    """How far off each number may be, by the largest of its column: losses, norms and flags are apart."""
    known = wanted.double().nan_to_num(posinf=0.0, neginf=0.0).abs()
    return _ROUNDING * (known.amax(0) if known.dim() == 2 else known) + _MIN_LOSS


def _compare_layers(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Gradients, or what is as large as they are, of each parameter."""
    sizes = [_largest(other) for other in wanted]
    floor = _MIN_GRADIENT * max(sizes, default=0.0) + 1e-12
    for mine, other, size in zip(found, wanted, sizes, strict=True):
        _require_close(mine, other, torch.tensor(_ROUNDING * size + floor))


def _compare_adam(
    sizes: Sequence[int], fast: Sequence[Tensor], eager: Sequence[Tensor], largest_step: float
) -> None:
    """Parameters and moments, layer by layer; `largest_step` is what Adam can move a parameter by."""
    flat, first, second, count = zip(fast, eager, strict=True)
    _require_close(*count, torch.zeros(()))
    # of second moments the roots, which are as large as gradients are
    for mine, other in (first, (second[0].sqrt(), second[1].sqrt())):
        _compare_layers(mine.split(sizes), other.split(sizes))
    clear = [part.abs() >= _CLEAR_GRADIENT * _largest(part) for part in first[1].split(sizes)]
    # where a gradient is nothing but rounding, Adam steps by its sign: one step may be another
    share = torch.where(torch.cat(clear), _STEP_SHARE, 2.0)
    _require_close(*flat, 1e-6 + share * largest_step)


def _require_close(mine: Tensor, other: Tensor, limit: Tensor) -> None:
    """NaN must be in the same places."""
    gap = (mine.double() - other.double()).abs()
    gap = torch.where((mine == other) | (mine.isnan() & other.isnan()), 0.0, gap)
    # NaN compares as false, so that it is a difference here
    if not bool((gap <= limit).all()):
        raise DriverError(
            f"its compiled form differs from Python's by {float(gap.max()):.2g}, where the largest "
            f"number is {_largest(other):.2g}"
        )


def _largest(numbers: Tensor) -> float:
    """Largest finite number; 0 if there is none."""
    known = numbers.double().nan_to_num(posinf=0.0, neginf=0.0).abs()
    return float(known.max()) if known.numel() else 0.0
