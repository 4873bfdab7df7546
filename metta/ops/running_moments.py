"""Mean and variance that grow batch by batch and merge across processes."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Num
from torch import Tensor

__all__ = ["Moments", "batch_moments", "merge", "pack", "unpack", "variance"]


class Moments(NamedTuple):
    """How many samples, their mean, and their summed squares around it, all float64.

    Moments of count 0 (mean 0, m2 0) change nothing when merged.
    """

    count: Float64[Tensor, ""]  # type: ignore[assignment]  # hides tuple.count, which has no use here
    mean: Float64[Tensor, "*F"]
    m2: Float64[Tensor, "*F"]


def batch_moments(x: Num[Tensor, "B ..."], weights: Float[Tensor, " B"]) -> Moments:
    """Moments of the rows of `x`, each counted `weights` times.

        count = sum(w),  mean = sum(w * x) / count,  m2 = sum(w * (x - mean)^2)

    Two passes in float64 (which MPS lacks): a large mean costs the variance no digits. Rows of
    weight 0 may hold anything; no rows give count 0.
    """
    row_weights = weights.detach().double().reshape(-1, *(1,) * (x.ndim - 1))
    rows = x.detach().double()
    rows = torch.where(row_weights != 0, rows, torch.zeros_like(rows))
    count = row_weights.sum()
    mean = (row_weights * rows).sum(dim=0) / _one_if_zero(count)
    m2 = (row_weights * (rows - mean).square()).sum(dim=0)
    return Moments(count, mean, m2)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of both sets of samples together (Chan, Golub and LeVeque 1979).

        delta = mean_b - mean_a
        mean  = mean_a + delta * count_b / count
        m2    = m2_a + m2_b + delta^2 * count_a * count_b / count

    A mean is stored to 16 digits, so `delta` is known to about 1e-16 times the mean: merged
    variances lose that much, relative to the standard deviation, when the mean dwarfs it.
    """
    count = a.count + b.count
    share_of_b = b.count / _one_if_zero(count)
    delta = b.mean - a.mean
    mean = a.mean + delta * share_of_b
    return Moments(count, mean, a.m2 + b.m2 + delta.square() * a.count * share_of_b)


def pack(moments: Moments) -> Float64[Tensor, " V"]:
    """Moments as one vector: count, mean, m2."""
    return torch.cat([moments.count[None], moments.mean.ravel(), moments.m2.ravel()])


def unpack(vector: Float64[Tensor, " V"], shape: tuple[int, ...] = ()) -> Moments:
    """What `pack` made of moments of this shape."""
    mean, m2 = vector[1:].view(2, *shape)
    return Moments(vector[0], mean, m2)


def variance(moments: Moments) -> Float64[Tensor, "*F"]:
    """Population variance m2 / count, in squared units of the samples; 0 for count 0."""
    return moments.m2 / _one_if_zero(moments.count)


def _one_if_zero(count: Float64[Tensor, ""]) -> Float64[Tensor, ""]:
    return torch.where(count > 0, count, torch.ones_like(count))
