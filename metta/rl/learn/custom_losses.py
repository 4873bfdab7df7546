"""Custom losses beside PPO's, over the same forward pass."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metta.errors import ConfigError, MettaWarning, did_you_mean
from metta.rl.learn.optimizer import scheduled

__all__ = ["CustomLoss", "as_custom_losses"]

LossFunction = Callable[..., Any]
Metrics = dict[str, Tensor | float]

SHARED_NAMES = (
    "policy", "obs", "actions", "rewards", "values", "advantages", "returns", "log_probs",
    "action_masks", "valid", "terminated", "truncated", "episode_starts",
    "output", "new_values", "new_log_probs", "entropy",
)  # fmt: skip
"""Names that a custom loss may ask for, beside any column that the rollout carries."""

_SCHEDULES = ("constant", "linear", "cosine")
_FROM_FORWARD = ("policy", "obs", "output", "new_values", "new_log_probs", "entropy")


@dataclass(frozen=True)
class CustomLoss:
    """A function of a minibatch, weighted and added to the total loss.

    `fn` receives what its parameters name: ``policy`` (the network) and ``obs`` (as the network sees
    them); ``actions, rewards, values, advantages, returns, log_probs, valid`` as stored in the rollout,
    invalid samples included; ``output, new_values, new_log_probs, entropy`` of the
    shared forward, with gradients; or any column added to the rollout. Parameters with a default keep
    it. It returns a 0-dim tensor, or ``(tensor, metrics)``. Samples are ``[B, ...]`` (``[L, B, ...]``
    for recurrent policies). The schedule goes from `weight` to ``weight * schedule_end``.

        CustomLoss(curiosity_loss, weight=0.1, schedule="linear")
    """

    fn: LossFunction
    weight: float = 1.0
    schedule: str = "constant"
    schedule_end: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ConfigError(f"a custom loss must be a function, got {type(self.fn).__name__}")
        if self.schedule not in _SCHEDULES:
            raise ConfigError(
                f"custom loss {self.label!r} has schedule={self.schedule!r}"
                f"{did_you_mean(self.schedule, _SCHEDULES)}; known are {', '.join(_SCHEDULES)}"
            )
        for field in ("weight", "schedule_end"):
            if not math.isfinite(getattr(self, field)):
                raise ConfigError(
                    f"custom loss {self.label!r} has {field}={getattr(self, field)}; use a number"
                )

    @property
    def label(self) -> str:
        """Name in metrics."""
        return self.name or getattr(self.fn, "__name__", type(self.fn).__name__)

    def wanted(self) -> list[str] | None:
        """Names of the function's parameters; None where it takes everything (``**kwargs``)."""
        target = self.fn.forward if isinstance(self.fn, nn.Module) else self.fn
        parameters = inspect.signature(target).parameters.values()
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return None
        return [
            p.name
            for p in parameters
            if p.default is inspect.Parameter.empty
            and p.kind is not inspect.Parameter.VAR_POSITIONAL
        ]

    def columns(self, available: Mapping[str, Tensor]) -> list[str]:
        """Rollout columns that must be gathered for this loss; unknown names are `ConfigError`."""
        wanted = self.wanted()
        if wanted is None:
            return list(available)
        known = {*SHARED_NAMES, *available}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"custom loss {self.label!r} asks for {name!r}, which is not available"
                    f"{did_you_mean(name, known)}; available: {sorted(known)}"
                )
            if name not in _FROM_FORWARD and name not in available:
                raise ConfigError(
                    f"custom loss {self.label!r} asks for {name!r}, but the rollout has no such column"
                )
        return [name for name in wanted if name not in _FROM_FORWARD]

    def weight_at(self, progress: float) -> float:
        """The weight at `progress` in 0..1 of the run."""
        return scheduled(self.schedule, self.weight, self.schedule_end, progress)

    def compute(self, values: Mapping[str, Any], weight: Tensor) -> tuple[Tensor, Metrics]:
        """The loss times `weight`, 0-dim, and the function's own metrics."""
        wanted = self.wanted()
        arguments = values if wanted is None else {name: values[name] for name in wanted}
        result = self.fn(**arguments)
        loss, metrics = result if isinstance(result, tuple) else (result, {})
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(
                f"custom loss {self.label!r} returned {found}; it must return a 0-dim tensor "
                "(use .mean()), or such a tensor and a dict of metrics"
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            warnings.warn(
                f"custom loss {self.label!r} does not depend on any parameter: it changes nothing. "
                "Use new_values, new_log_probs, entropy or output, which carry gradients",
                MettaWarning,
                stacklevel=2,
            )
        for name, value in metrics.items():
            if isinstance(value, Tensor) and value.dim() != 0:
                raise ConfigError(
                    f"metric {name!r} of custom loss {self.label!r} has shape {tuple(value.shape)}; "
                    "give one number per metric"
                )
        return loss * weight, metrics


def as_custom_losses(losses: Sequence[CustomLoss | LossFunction]) -> list[CustomLoss]:
    """Plain functions and modules wrapped with weight 1; names must differ."""
    if callable(losses):
        raise ConfigError("custom_losses is a list; write custom_losses=[my_loss]")
    wrapped = [loss if isinstance(loss, CustomLoss) else CustomLoss(loss) for loss in losses]
    labels = [loss.label for loss in wrapped]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"custom losses have the names {labels}; give each its own name=")
    return wrapped
