"""Numbers that show how an update went; none of them is trained on."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from metta.ops.losses import Coefficient, log_ratios
from metta.ops.running_moments import Moments, batch_moments

__all__ = [
    "all_finite",
    "approx_kl",
    "clip_fraction",
    "explained_by",
    "explained_variance",
    "value_moments",
]


def all_finite(values: Tensor) -> bool:
    """Whether there is neither NaN nor infinity; waits for the device."""
    # one pass if the sum is finite; a sum of finite numbers may still overflow
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def approx_kl(
    new_log_probs: Float[Tensor, "*B"], old_log_probs: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Estimate of KL(old || new) per sample, in nats; never negative beyond rounding.

        (ratio - 1) - log_ratio        Schulman, "Approximating KL divergence" (2020), k3

    Its mean over samples of the old policy is unbiased. `expm1` keeps the digits that ratio - 1
    loses when the policies are close. Log-ratios are held within +-20, as in the loss.
    """
    log_ratio = log_ratios(new_log_probs, old_log_probs)
    return torch.expm1(log_ratio) - log_ratio


def clip_fraction(
    new_log_probs: Float[Tensor, "*B"],
    old_log_probs: Float[Tensor, "*B"],
    clip_coef: Coefficient,
) -> Float[Tensor, "*B"]:
    """1 per sample whose ratio lies further than `clip_coef` from 1, else 0.

    Its mean is the share of samples outside the clip range, whichever way their advantage points:
    those that it pulls back inside still have a gradient.
    """
    distance = torch.expm1(log_ratios(new_log_probs, old_log_probs)).abs()
    return (distance > clip_coef).to(distance.dtype)


def explained_variance(
    values: Float[Tensor, "*B"], returns: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]
) -> Float[Tensor, ""]:
    """Share of the returns' weighted variance that the values account for; at most 1.

        1 - Var[returns - values] / Var[returns]        variances around the mean, two passes

    1 is perfect up to a constant offset, 0 is no better than a constant, negative is worse. It is 0
    by definition when the returns have no variance: fewer than two rows, or a standard deviation
    below the rounding of their mean. Rows of weight 0 may hold anything; NaN elsewhere gives NaN.
    """
    found = explained_by(value_moments(values, returns, weights), returns.dtype)
    return found.to(returns.dtype)


def value_moments(
    values: Float[Tensor, "*B"], returns: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]
) -> Moments:
    """Weighted moments ``[2]`` of the returns and of what the values leave of them."""
    both = torch.stack([returns.flatten(), (returns - values).flatten()], dim=1)
    return batch_moments(both, weights.flatten())


def explained_by(moments: Moments, dtype: torch.dtype) -> Float64[Tensor, ""]:
    """`explained_variance` of `value_moments`; `dtype` is that of the returns, which were rounded to it."""
    spread, residual_spread = moments.m2.unbind()
    rounding = 8.0 * torch.finfo(dtype).eps * moments.mean[0]
    has_variance = ~(spread <= moments.count * rounding.square())  # true for NaN, so that it shows
    explained = 1.0 - residual_spread / spread.where(has_variance, 1.0)
    return explained.where(has_variance, 0.0)
