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
_QUADRATURE_NODES = 24


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
        """Clipped to the bounds; NaN is refused here, before an environment could meet it."""
        return self._shaped(np.clip(action, self.low, self.high))

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
        if not np.isfinite(action).all():
            row = int(np.flatnonzero(~np.isfinite(action).all(-1))[0])
            raise NonFiniteError(
                f"the policy produced a non-finite action in row {row}: {action[row]}; its "
                "parameters or the observation hold NaN or infinity (try a lower learning rate)"
            )
        return action.reshape(len(action), *self.env_shape).astype(self.env_dtype, copy=False)


class SquashedBoxSpec(BoxSpec):
    """Gaussian squashed by tanh into the bounds; the sample is stored before squashing."""

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The mean before squashing, which is the median after it."""
        return super().mode(params, mask)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """``low + (tanh(action) + 1) / 2 * (high - low)``."""
        return self._shaped(self.low + (np.tanh(action) + 1.0) * 0.5 * (self.high - self.low))

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Log-density in the environment's units: the Gaussian's minus the log-Jacobian."""
        jacobian = _log_tanh_slope(action).sum(-1) + self._log_scale()
        return super().log_prob(params, action, mask) - jacobian

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Gaussian entropy plus the expected log-Jacobian, by Gauss-Hermite quadrature."""
        mean, log_std = _gaussian(params)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
        points = params.new_tensor(nodes)
        shares = params.new_tensor(weights / weights.sum())
        samples = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points
        expected = (_log_tanh_slope(samples) * shares).sum(-1).sum(-1)
        return super().entropy(params, mask) + expected + self._log_scale()

    def _log_scale(self) -> float:
        return float(np.log(0.5 * (self.high - self.low)).sum())


def _gaussian(params: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = params.chunk(2, -1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def _log_tanh_slope(value: Tensor) -> Tensor:
    """``log(1 - tanh(x)^2)``, stable for large ``|x|``."""
    return 2.0 * (math.log(2.0) - value - torch.nn.functional.softplus(-2.0 * value))
