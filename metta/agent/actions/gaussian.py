"""Continuous actions: pure functions of means and log-deviations."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from metta.errors import NonFiniteError

__all__ = ["BoxSpec", "SquashedBoxSpec"]

LOG_STD_RANGE = (-20.0, 2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

# Trapezoids over 5 deviations: for this smooth integrand better than Gauss-Hermite of equal cost.
# Errors: 2e-6 nats up to deviation 1.6, 1e-5 at 2.7, 7e-3 at the largest, 7.4.
_QUADRATURE_POINTS = np.linspace(-5.0, 5.0, 33)
_QUADRATURE_SHARES = np.exp(-0.5 * _QUADRATURE_POINTS**2)
_QUADRATURE_SHARES /= _QUADRATURE_SHARES.sum()


@dataclass(frozen=True, eq=False)
class BoxSpec:
    """Diagonal Gaussian; parameters are means and log-deviations, side by side.

    Samples are stored as drawn and clipped to the bounds only on their way to the environment.
    """

    low: np.ndarray
    high: np.ndarray
    env_shape: tuple[int, ...]
    env_dtype: Any
    noise_kind: Literal["gumbel", "normal"] = "normal"
    action_dtype: torch.dtype = torch.float32
    mask_size: int = 0

    @property
    def num_params(self) -> int:
        """Mean and log-deviation of each dimension."""
        return 2 * self.low.size

    @property
    def noise_dim(self) -> int:
        """One normal number per dimension."""
        return self.low.size

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Flat, whatever the shape of the space."""
        return (self.low.size,)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002 (protocol)
        """Mean plus deviation times noise."""
        mean, log_std = _gaussian(params)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002 (protocol)
        """The mean."""
        return _gaussian(params)[0]

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Clipped to the bounds; NaN and infinity are refused before they reach an environment."""
        _require_finite(action)
        return self._shaped(action)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002 (protocol)
        """Log-density of the unclipped sample, summed over dimensions."""
        mean, log_std = _gaussian(params)
        standard = (action - mean) * (-log_std).exp()
        return (-0.5 * standard.square() - log_std - _HALF_LOG_TWO_PI).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002 (protocol)
        """Of the unclipped Gaussian, summed over dimensions."""
        return (_gaussian(params)[1] + 0.5 + _HALF_LOG_TWO_PI).sum(-1)

    def log_prob_and_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both at once."""
        return self.log_prob(params, action, mask), self.entropy(params, mask)

    def _shaped(self, action: np.ndarray) -> np.ndarray:
        inside: np.ndarray = np.clip(action, self.low, self.high)
        return inside.reshape(len(action), *self.env_shape).astype(self.env_dtype, copy=False)


class SquashedBoxSpec(BoxSpec):
    """Gaussian squashed by tanh into the bounds; the sample is stored before squashing."""

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """``low + (tanh(action) + 1) / 2 * (high - low)``; NaN and infinity are refused."""
        _require_finite(action)
        share = (np.tanh(action) + 1.0) * 0.5
        # this form of the line between the bounds cannot overflow
        return self._shaped(self.low * (1.0 - share) + self.high * share)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Log-density in the environment's units: the Gaussian's minus the log-Jacobian."""
        jacobian = _log_tanh_slope(action).sum(-1) + self._log_scale()
        return super().log_prob(params, action, mask) - jacobian

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Gaussian entropy plus the expected log-Jacobian, by quadrature."""
        mean, log_std = _gaussian(params)
        points = params.new_tensor(_QUADRATURE_POINTS)
        shares = params.new_tensor(_QUADRATURE_SHARES)
        samples = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points
        expected = (_log_tanh_slope(samples) * shares).sum(-1).sum(-1)
        return super().entropy(params, mask) + expected + self._log_scale()

    def _log_scale(self) -> float:
        half_range = 0.5 * self.high.astype(np.float64) - 0.5 * self.low.astype(np.float64)
        return float(np.log(half_range).sum())


def _require_finite(action: np.ndarray) -> None:
    finite = np.isfinite(action)
    if not finite.all():
        row = int(np.flatnonzero(~finite.all(-1))[0])
        raise NonFiniteError(
            f"the policy produced a non-finite action in row {row}: {action[row]}; its "
            "parameters or the observation hold NaN or infinity (try a lower learning rate)"
        )


def _gaussian(params: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = params.chunk(2, -1)
    # gradients pass the bounds, so that a deviation outside of them can return
    return mean, log_std + (log_std.clamp(*LOG_STD_RANGE) - log_std).detach()


def _log_tanh_slope(value: Tensor) -> Tensor:
    """``log(1 - tanh(x)^2)``, stable for large ``|x|``."""
    return 2.0 * (math.log(2.0) - value - torch.nn.functional.softplus(-2.0 * value))
