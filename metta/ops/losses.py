"""PPO's loss terms per sample, and means that skip rows without weight.

Nothing here branches on data, and each coefficient may be a Python float or a 0-dim tensor: with
tensors a schedule changes numbers without making `torch.compile` compile again.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from metta.ops.running_moments import Moments

__all__ = [
    "Coefficient",
    "clipped_surrogate",
    "log_ratios",
    "normalize_advantages",
    "normalize_by",
    "scale_advantages",
    "value_loss",
    "weighted_mean",
    "zero_unweighted",
]

Coefficient = float | Float[Tensor, ""]

_MAX_LOG_RATIO = 20.0


def log_ratios(
    new_log_probs: Float[Tensor, "*B"], old_log_probs: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Log of new over old probability, held within +-20.

    Beyond 88 float32's exp is infinite, and infinity times an advantage of 0, or times the 0 that
    the clip hands back, is NaN in loss or gradient. e^20 is far outside every trust region; a
    sample out there keeps a finite loss and gets no gradient. NaN stays NaN.
    """
    return (new_log_probs - old_log_probs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def clipped_surrogate(
    new_log_probs: Float[Tensor, "*B"],
    old_log_probs: Float[Tensor, "*B"],
    advantages: Float[Tensor, "*B"],
    clip_coef: Coefficient,
) -> Float[Tensor, "*B"]:
    """PPO's policy loss per sample (Schulman et al. 2017, arXiv:1707.06347, eq. 7), negated.

        ratio = exp(new_log_probs - old_log_probs)
        loss  = max(-A * ratio, -A * clip(ratio, 1 - clip_coef, 1 + clip_coef))

    The gradient is zero where the ratio has left the clip range in the direction that A favours.
    See `log_ratios` for the bound on the exponent.
    """
    ratios = log_ratios(new_log_probs, old_log_probs).exp()
    clipped_ratios = _clip(ratios, 1.0 - clip_coef, 1.0 + clip_coef)
    return torch.maximum(-advantages * ratios, -advantages * clipped_ratios)


def value_loss(
    new_values: Float[Tensor, "*B"],
    old_values: Float[Tensor, "*B"],
    returns: Float[Tensor, "*B"],
    clip_coef: Coefficient | None = None,
    scale: Coefficient = 1.0,
) -> Float[Tensor, "*B"]:
    """Half the squared error of the values per sample, in units of `scale`.

        error = (new_values - returns) / scale
        loss  = 0.5 * error^2
        with clip_coef: 0.5 * max(error^2, clipped_error^2), where clipped_error belongs to
        old_values / scale + clip((new_values - old_values) / scale, -clip_coef, clip_coef)

    `scale` is a standard deviation in raw reward units, above 0. It acts only in here: values and
    returns stay raw outside, while `clip_coef` counts in scaled units.
    """
    new_scaled, old_scaled, target = new_values, old_values, returns
    if isinstance(scale, Tensor) or scale != 1.0:
        new_scaled, old_scaled, target = new_values / scale, old_values / scale, returns / scale
    squared_error = (new_scaled - target).square()
    if clip_coef is None:
        return 0.5 * squared_error
    clipped = old_scaled + _clip(new_scaled - old_scaled, -clip_coef, clip_coef)
    return 0.5 * torch.maximum(squared_error, (clipped - target).square())


def zero_unweighted(
    values: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """`values` with 0 in every row whose weight is 0, whatever it held, NaN included.

    Such a row's gradient is exactly 0 as well. Use it on what goes into a loss: a NaN that has
    entered a product comes back as 0 * NaN in the other factor's gradient, masked later or not.
    """
    return torch.where(weights != 0, values, torch.zeros_like(values))


def weighted_mean(values: Float[Tensor, "*B"], weights: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    """sum(values * weights) / max(sum(weights), 1); rows of weight 0 may hold anything.

    Without any weight the mean is 0. The floor of 1 is meant for weights that count samples; it
    damps a batch whose weights sum to less.
    """
    return (zero_unweighted(values, weights) * weights).sum() / weights.sum().clamp(min=1.0)


def normalize_advantages(
    advantages: Float[Tensor, "*B"], weights: Float[Tensor, "*B"] | None, eps: float = 1e-8
) -> Float[Tensor, "*B"]:
    """Advantages with weighted mean 0 and standard deviation 1; rows of weight 0 become 0.

        n = sum(w),  mean = sum(w * A) / n,  std = sqrt(sum(w * (A - mean)^2) / (n - 1))
        result = (A - mean) / (std + eps)

    Weights count samples; None means 1 for all. The spread is taken around the mean in a second
    pass, since E[A^2] - E[A]^2 cancels. With n < 2 there is no spread: rows with weight come back as
    they are. A spread within the rounding of the mean is none: all become 0, instead of noise blown
    up to size 1.
    """
    if weights is None:
        if advantages.numel() < 2:
            return advantages
        mean = advantages.mean()
        centred = advantages - mean
        return _scaled(centred, centred.square().sum() / (advantages.numel() - 1.0), mean, eps)
    num_samples = weights.sum()
    known = zero_unweighted(advantages, weights)
    mean = weighted_mean(known, weights)
    centred = known - mean
    variance = (weights * centred.square()).sum() / (num_samples - 1.0).clamp(min=1.0)
    normalized = torch.where(num_samples < 2.0, known, _scaled(centred, variance, mean, eps))
    return zero_unweighted(normalized, weights)


def normalize_by(
    advantages: Float[Tensor, "*B"],
    weights: Float[Tensor, "*B"] | None,
    moments: Moments,
    *,
    is_centred: bool = True,
    eps: float = 1e-8,
) -> Float[Tensor, "*B"]:
    """`normalize_advantages` of a part of a batch, by the moments of all of it.

    With `is_centred` false it is `scale_advantages`: the mean stays.
    """
    count, mean, m2 = moments
    known = advantages if weights is None else zero_unweighted(advantages, weights)
    if not is_centred:
        square = m2 / count.clamp(min=1.0) + mean.square()
        return known / (square.sqrt() + eps).to(known.dtype)
    mean, variance = mean.to(known.dtype), (m2 / (count - 1.0).clamp(min=1.0)).to(known.dtype)
    normalized = torch.where(count < 2.0, known, _scaled(known - mean, variance, mean, eps))
    return normalized if weights is None else zero_unweighted(normalized, weights)


def scale_advantages(
    advantages: Float[Tensor, "*B"], weights: Float[Tensor, "*B"] | None, eps: float = 1e-8
) -> Float[Tensor, "*B"]:
    """Advantages of root mean square 1, not shifted; rows of weight 0 become 0.

        result = A / (sqrt(sum(w * A^2) / sum(w)) + eps)

    For advantages that carry importance weights: a mean that is taken off after the weighting is no
    longer a baseline, and pushes the policy away from whatever the older one did.
    """
    if weights is None:
        return advantages / (advantages.square().mean().sqrt() + eps)
    known = zero_unweighted(advantages, weights)
    return known / (weighted_mean(known.square(), weights).sqrt() + eps)


def _scaled(
    centred: Float[Tensor, "*B"], variance: Float[Tensor, ""], mean: Float[Tensor, ""], eps: float
) -> Float[Tensor, "*B"]:
    deviation = variance.sqrt()
    rounding = 8.0 * torch.finfo(centred.dtype).eps * mean.abs()
    return torch.where(deviation > rounding, centred / (deviation + eps), 0.0)


def _clip(values: Float[Tensor, "*B"], low: Coefficient, high: Coefficient) -> Float[Tensor, "*B"]:
    return torch.clamp(values, low, high)  # type: ignore[arg-type]  # reason: overloads want two floats or two tensors
