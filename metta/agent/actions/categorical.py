"""Discrete actions: pure functions of logits, sampled by Gumbel-max."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["DiscreteSpec", "MultiDiscreteSpec"]

MASKED_LOGIT = -1e9
"""Finite, so that entropies and gradients of masked entries are exactly zero and never NaN."""


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """Independent categorical parts; parameters are their logits, side by side.

    Sampling is Gumbel-max: the argmax of logits plus Gumbel noise has the softmax distribution.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    env_shape: tuple[int, ...]
    env_dtype: Any
    noise_kind: Literal["gumbel", "normal"] = "gumbel"
    action_dtype: torch.dtype = torch.int64

    @property
    def num_params(self) -> int:
        """Sum of the parts' sizes."""
        return sum(self.sizes)

    @property
    def noise_dim(self) -> int:
        """One Gumbel number per logit."""
        return self.num_params

    @property
    def mask_size(self) -> int:
        """One entry per logit."""
        return self.num_params

    @property
    def action_shape(self) -> tuple[int, ...]:
        """One index per part."""
        return (len(self.sizes),)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Gumbel-max in each part."""
        return self._argmax(_masked(params, mask) + noise)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The largest legal logit of each part."""
        return self._argmax(_masked(params, mask))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Indices shifted by the parts' starts, in the space's shape."""
        shifted: np.ndarray = action + np.asarray(self.starts)
        return shifted.reshape(len(action), *self.env_shape).astype(self.env_dtype, copy=False)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Sum over parts."""
        return self.log_prob_and_entropy(params, action, mask)[0]

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Sum over parts."""
        parts = self._split(_masked(params, mask))
        return torch.stack([_categorical_entropy(p.log_softmax(-1)) for p in parts]).sum(0)

    def log_prob_and_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Sums over parts."""
        log_probs, entropies = [], []
        for part, logits in enumerate(self._split(_masked(params, mask))):
            normalised = logits.log_softmax(-1)
            log_probs.append(normalised.gather(-1, action[..., part, None]).squeeze(-1))
            entropies.append(_categorical_entropy(normalised))
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def _argmax(self, scores: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in self._split(scores)], -1)

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        return torch.split(values, list(self.sizes), -1)


@dataclass(frozen=True)
class DiscreteSpec:
    """One categorical action; parameters are its logits. Sampled by Gumbel-max."""

    size: int
    start: int = 0
    noise_kind: Literal["gumbel", "normal"] = "gumbel"
    action_shape: tuple[int, ...] = ()
    action_dtype: torch.dtype = torch.int64
    env_dtype: Any = np.int64

    @property
    def num_params(self) -> int:
        """One logit per action."""
        return self.size

    @property
    def noise_dim(self) -> int:
        """One Gumbel number per logit."""
        return self.size

    @property
    def mask_size(self) -> int:
        """One entry per logit."""
        return self.size

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Gumbel-max."""
        return (_masked(params, mask) + noise).argmax(-1)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The largest legal logit."""
        return _masked(params, mask).argmax(-1)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Indices shifted by the space's start; a copy, so that no environment can edit a rollout."""
        if not self.start:
            return action.astype(self.env_dtype)
        shifted: np.ndarray = action + self.start
        return shifted.astype(self.env_dtype, copy=False)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Log-softmax at the action."""
        normalised = _masked(params, mask).log_softmax(-1)
        return normalised.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Over the legal actions."""
        return _categorical_entropy(_masked(params, mask).log_softmax(-1))

    def log_prob_and_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One log-softmax for both."""
        normalised = _masked(params, mask).log_softmax(-1)
        log_prob = normalised.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return log_prob, _categorical_entropy(normalised)


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits.masked_fill(mask.logical_not(), MASKED_LOGIT)


def _categorical_entropy(log_probs: Tensor) -> Tensor:
    # networks that mask themselves return -inf, and 0 * -inf is NaN
    finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)
    return -(log_probs.exp() * finite).sum(-1)
