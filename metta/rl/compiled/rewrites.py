"""Operations of an update as the compiler on a CPU does them best: the same numbers but for rounding."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["fast_tanh", "rewrite_of"]

_FAST_TANH_RANGE = 7.90531110763549805
"""Beyond it the quotient would pass 1."""
_FAST_TANH_ABOVE = (
    4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08,
    -8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16,
)  # fmt: skip
_FAST_TANH_BELOW = (
    4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06,
)  # fmt: skip
_NARROW = 16
"""Columns of a product below which libraries of linear algebra waste most of their vectors."""


def rewrite_of(func: Any, args: tuple[Any, ...], options: Any) -> Callable[[], Tensor] | None:
    """What to do in place of an operation; None if it is best unchanged, or is unknown here."""
    rule = _RULES.get(func)
    is_known = not options and all(_is_plain(arg) for arg in args if isinstance(arg, Tensor))
    return rule(*args) if rule is not None and is_known else None


def fast_tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as a quotient of polynomials, to 6 units in the last place.

    Compiled, it takes a tenth of the time of an exponential.
    """
    x = x.clamp(-_FAST_TANH_RANGE, _FAST_TANH_RANGE)
    square = x * x
    return x * _polynomial(square, _FAST_TANH_ABOVE) / _polynomial(square, _FAST_TANH_BELOW)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    *rest, last = coefficients
    result: Any = last
    for coefficient in reversed(rest):
        result = coefficient + x * result
    assert isinstance(result, Tensor)
    return result


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is a dense float tensor on the CPU; others are not rewritten."""
    is_float = tensor.dtype in (torch.float32, torch.float64)
    return is_float and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _tanh(x: Tensor) -> Callable[[], Tensor] | None:
    return (lambda: fast_tanh(x)) if x.dtype == torch.float32 else None


def _product(left: Tensor, right: Tensor) -> Callable[[], Tensor] | None:
    """Outer products by element; narrow ones of a transposed matrix (gradients of weights) transposed."""
    rows, columns = left.shape[0], right.shape[1]
    if left.dtype != right.dtype:
        return None
    if left.shape[1] == right.shape[0] == 1:
        return lambda: left * right
    is_transposed = left.stride(0) == 1 and left.stride(1) == rows
    if is_transposed and 1 < columns < _NARROW < rows:
        # laid out as the plain product is: fused optimizers and views go by its strides
        return lambda: right.t().mm(left.t()).t().contiguous()
    return None


def _decay(base: float, exponent: Tensor) -> Callable[[], Tensor] | None:
    """Adam's powers are computed once; the compiler would do so for each element that they meet."""
    if exponent.dim() or exponent.dtype != torch.float64 or not 0.0 < base < 1.0:
        return None
    # a view by strides is the one operation that makes the compiler put its input into memory
    return lambda: (exponent * math.log(base)).exp().as_strided((), ())


_RULES: dict[Any, Callable[..., Callable[[], Tensor] | None]] = {
    torch.ops.aten.tanh.default: _tanh,
    torch.ops.aten.mm.default: _product,
    torch.ops.aten.pow.Scalar: _decay,
}
