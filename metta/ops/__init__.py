"""Pure tensor functions: advantages, losses, diagnostics and running moments."""

from metta.ops.advantages import VTrace, gae, native_available, vtrace
from metta.ops.diagnostics import approx_kl, clip_fraction, explained_variance
from metta.ops.losses import (
    Coefficient,
    clipped_surrogate,
    log_ratios,
    normalize_advantages,
    scale_advantages,
    value_loss,
    weighted_mean,
    zero_unweighted,
)
from metta.ops.running_moments import Moments, batch_moments, merge, variance

__all__ = [
    "gae",
    "vtrace",
    "VTrace",
    "native_available",
    "clipped_surrogate",
    "value_loss",
    "log_ratios",
    "Coefficient",
    "weighted_mean",
    "zero_unweighted",
    "normalize_advantages",
    "scale_advantages",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "Moments",
    "batch_moments",
    "merge",
    "variance",
]
