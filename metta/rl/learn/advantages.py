"""`advantages_of`: advantages and returns of a rollout, as the settings want them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metta.ops.advantages import gae, vtrace
from metta.train.train_config import PPOConfig

__all__ = ["advantages_of"]


def advantages_of(
    columns: Mapping[str, Tensor], config: PPOConfig, log_ratios: Tensor | None = None
) -> dict[str, Tensor]:
    """``advantages`` and ``returns`` ``[T, N]``; arguments as of `PPOOptimizer.compute_advantages`."""
    rewards, values = columns["rewards"], columns["values"]
    next_values, terminated = columns["next_values"], columns["terminated"]
    ended = terminated | columns["truncated"]
    if "valid" in columns:
        # a step that was not taken carries no information about those before it
        ended = ended | ~columns["valid"]
        ended[:-1] |= ~columns["valid"][1:]
    discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
    if config.advantage_estimator == "gae":
        advantages = gae(rewards, values, next_values, terminated, ended, **discounts)
        return {"advantages": advantages, "returns": advantages + values}
    ratios = torch.zeros_like(values) if log_ratios is None else log_ratios
    clips = {"rho_clip": config.vtrace_rho_clip, "c_clip": config.vtrace_c_clip}
    traces = vtrace(rewards, values, next_values, terminated, ended, ratios, **discounts, **clips)
    return {"advantages": traces.advantages, "returns": traces.targets}
