"""Numbers that say how an update went; none of them is trained on."""

import torch
from jaxtyping import Float
from torch import Tensor

from metta.ops.losses import Coefficient, log_ratios, zero_unweighted

__all__ = ["approx_kl", "clip_fraction", "explained_variance"]


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
    known_returns = zero_unweighted(returns, weights)
    residuals = known_returns - zero_unweighted(values, weights)
    mean, spread = _mean_and_spread(known_returns, weights)
    _, residual_spread = _mean_and_spread(residuals, weights)
    rounding = 8.0 * torch.finfo(returns.dtype).eps * mean
    has_variance = ~(spread <= weights.sum() * rounding.square())  # true for NaN, so that it shows
    explained = 1.0 - residual_spread / torch.where(has_variance, spread, torch.ones_like(spread))
    return torch.where(has_variance, explained, torch.zeros_like(explained))


def _mean_and_spread(
    values: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Weighted mean, and the weighted sum of squares around it."""
    total = weights.sum()
    mean = (weights * values).sum() / torch.where(total > 0, total, torch.ones_like(total))
    return mean, (weights * (values - mean).square()).sum()
