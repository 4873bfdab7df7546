"""The PPO update in two functions without data-dependent branches: a loss, and a step.

Drivers call them; the numbers are defined here and nowhere else.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metta.agent.output import PolicyOutput
from metta.agent.policy import Policy
from metta.ops.diagnostics import approx_kl, clip_fraction
from metta.ops.losses import clipped_surrogate, value_loss, weighted_mean
from metta.rl.custom_losses import CustomLoss, Metrics
from metta.rl.optimizer import Stepper
from metta.rl.rollout_data import Minibatch

__all__ = ["LossTerms", "UpdateCoefs", "apply_update", "minibatch_loss"]


class UpdateCoefs(NamedTuple):
    """Coefficients of one update; tensors, so that a schedule never means another graph."""

    clip: Tensor
    value: Tensor
    entropy: Tensor
    value_clip: Tensor | None
    progress: float


class LossTerms(NamedTuple):
    """What a minibatch gave."""

    total: Tensor
    """0-dim, with gradient."""
    terms: Tensor
    """``[6]`` in the order of `LOSS_NAMES`; the first four carry gradients."""
    metrics: Metrics
    """Of custom losses, prefixed with their names."""


def minibatch_loss(
    policy: Policy, batch: Minibatch, coefs: UpdateCoefs, custom: Sequence[CustomLoss] = ()
) -> LossTerms:
    """Clipped surrogate, value error, entropy and custom losses over one shared forward.

        total = policy_loss + value * value_loss + entropy * entropy_loss + custom
        entropy_loss = -mean entropy

    (Schulman et al. 2017, eq. 9.) Invalid samples enter none of PPO's terms.
    """
    columns = batch.columns
    output = policy(batch.obs, batch.state, columns.get("episode_starts"))
    new_log_probs, entropy = policy.action_spec.log_prob_and_entropy(
        output.dist_params, columns["actions"], columns.get("action_masks")
    )
    old_log_probs = columns["log_probs"]
    advantages = columns["advantages"] if batch.advantages is None else batch.advantages
    surrogate = clipped_surrogate(new_log_probs, old_log_probs, advantages, coefs.clip)
    errors = value_loss(
        output.value, columns["values"], columns["returns"], coefs.value_clip, policy.value_scale
    )
    policy_term, value_term = _mean(surrogate, batch.weights), _mean(errors, batch.weights)
    entropy_term = -_mean(entropy, batch.weights)
    total = policy_term + coefs.value * value_term + coefs.entropy * entropy_term
    metrics: Metrics = {}
    if custom:
        values = _loss_values(policy, batch, output, new_log_probs, entropy)
        for loss in custom:
            term, extra = loss.compute(values, coefs.progress)
            total = total + term
            metrics[loss.label] = term.detach()
            metrics.update({f"{loss.label}/{key}": value for key, value in extra.items()})
    with torch.no_grad():
        divergence = _mean(approx_kl(new_log_probs, old_log_probs), batch.weights)
        clipped = _mean(clip_fraction(new_log_probs, old_log_probs, coefs.clip), batch.weights)
    terms = torch.stack([policy_term, value_term, entropy_term, total, divergence, clipped])
    return LossTerms(total, terms, metrics)


def apply_update(
    stepper: Stepper, terms: Tensor, stopped: Tensor, max_grad_norm: float | None
) -> tuple[Tensor, Tensor]:
    """Step with clipped gradients where everything is finite and nothing has stopped.

    Returns the gradient norm before clipping and whether everything was finite, both 0-dim.
    """
    norm = stepper.grad_norm()
    finite = (norm + terms.sum()).isfinite()
    scale = torch.ones_like(norm)
    if max_grad_norm is not None:
        scale = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    stepper.apply(scale, finite & ~stopped)
    return norm, finite


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else weighted_mean(values, weights)


def _loss_values(
    policy: Policy, batch: Minibatch, output: PolicyOutput, log_probs: Tensor, entropy: Tensor
) -> dict[str, Any]:
    """What custom losses may name; feed-forward samples lose their leading axis of 1."""

    def drop(values: Tensor) -> Tensor:
        return values if policy.is_recurrent else values[0]

    extras = {key: drop(value) for key, value in output.extras.items()}
    shared = PolicyOutput(drop(output.dist_params), drop(output.value), output.state, extras)
    return {
        **{name: drop(column) for name, column in batch.columns.items()},
        "policy": policy.module,
        "obs": policy.obs_spec.nest(
            {key: drop(leaf) for key, leaf in policy.prepare(batch.obs).items()}
        ),
        "output": shared,
        "new_values": shared.value,
        "new_log_probs": drop(log_probs),
        "entropy": drop(entropy),
    }
