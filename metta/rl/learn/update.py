"""The PPO update in two functions without data-dependent branches: a loss, and a step.

`learn_minibatch` combines them, drivers call it, and the numbers are defined here and nowhere else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metta.agent.output import Obs, PolicyOutput, State
from metta.agent.policy import Policy
from metta.ops.diagnostics import approx_kl, clip_fraction
from metta.ops.losses import (
    clipped_surrogate,
    normalize_advantages,
    scale_advantages,
    value_loss,
    weighted_mean,
)
from metta.rl.learn.custom_losses import CustomLoss, Metrics
from metta.rl.learn.optimizer import Stepper
from metta.rl.learn.update_log import LOSS_NAMES
from metta.train.train_config import PPOConfig

__all__ = [
    "LossTerms",
    "Minibatch",
    "UpdateCoefs",
    "UpdateRules",
    "add_gradients",
    "apply_update",
    "finish_minibatch",
    "is_empty",
    "learn_minibatch",
    "minibatch_loss",
    "split_rows",
]

_KL_TERM = LOSS_NAMES.index("approx_kl")


class UpdateCoefs(NamedTuple):
    """Coefficients of one update; tensors, so that a schedule never means another graph."""

    clip: Tensor
    value: Tensor
    entropy: Tensor
    value_clip: Tensor | None
    custom: Tensor
    """``[K]``, the weight of each custom loss."""


class UpdateRules(NamedTuple):
    """What stays the same from minibatch to minibatch and from update to update."""

    policy: Policy
    config: PPOConfig
    custom: tuple[CustomLoss, ...]

    def is_over(self, stopped: Tensor) -> bool:
        """Whether nothing steps any more; only the CPU may look without waiting for a device."""
        return self.config.target_kl is not None and stopped.device.type == "cpu" and bool(stopped)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Samples of one gradient: ``[1, B, ...]``, or segments ``[L, B, ...]`` for recurrent policies."""

    columns: dict[str, Tensor]
    """Every gathered column."""
    obs: Obs
    state: State
    """Recurrent state before the first step of each segment, ``[B, ...]``."""
    weights: Tensor | None
    """1 for valid samples, 0 for others; None where all are valid."""
    advantages: Tensor | None = None
    """Normalised advantages for the policy loss; None: those of the columns, as they are."""


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
        for loss, weight in zip(custom, coefs.custom.unbind(), strict=True):
            term, extra = loss.compute(values, weight)
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


def learn_minibatch(
    rules: UpdateRules, stepper: Stepper, batch: Minibatch, coefs: UpdateCoefs, stopped: Tensor
) -> tuple[Tensor, Tensor, list[Metrics]]:
    """Everything that one minibatch does: gradients, the decision to stop, the step.

    Returns a row ``[10]`` for the `UpdateLog`, whether the update has stopped, 0-dim, and the metrics
    of custom losses, one mapping for each piece.
    """
    terms, metrics = add_gradients(rules, stepper, batch, coefs)
    row, stopped = finish_minibatch(rules, stepper, terms, is_empty(batch), stopped)
    return row, stopped, metrics


def is_empty(batch: Minibatch) -> Tensor:
    """Whether no sample counts, 0-dim: there is no gradient, and momentum alone must not step."""
    if batch.weights is None:
        return torch.zeros((), dtype=torch.bool, device=batch.columns["values"].device)
    return batch.weights.sum() == 0


def finish_minibatch(
    rules: UpdateRules, stepper: Stepper, terms: Tensor, empty: Tensor, stopped: Tensor
) -> tuple[Tensor, Tensor]:
    """Decide and step, once the gradients are computed; returns a row ``[10]`` and whether it is over."""
    before, limit = stopped, rules.config.target_kl
    if limit is not None:
        # stop before stepping: this gradient has already left the trust region
        stopped = stopped | (terms[_KL_TERM] > limit)
    norm, finite = apply_update(stepper, terms, stopped | empty, rules.config.max_grad_norm)
    flags = torch.stack([norm, finite, ~(before | empty), stopped])
    return torch.cat([terms, flags]), stopped


def add_gradients(
    rules: UpdateRules, stepper: Stepper, batch: Minibatch, coefs: UpdateCoefs
) -> tuple[Tensor, list[Metrics]]:
    """Gradients of one minibatch, in pieces where asked; returns its loss terms ``[6]``."""
    stepper.zero_grad()
    sums: list[Tensor] = []
    metrics: list[Metrics] = []
    batch = _with_normal_advantages(batch, rules.config)
    for piece, share in split_rows(batch, rules.config.gradient_accumulation):
        result = minibatch_loss(rules.policy, piece, coefs, rules.custom)
        stepper.backward(result.total if share is None else result.total * share)
        terms = result.terms.detach()
        sums.append(terms if share is None else terms * share)
        if result.metrics:
            metrics.append(result.metrics)
    return (sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)), metrics


def split_rows(batch: Minibatch, pieces: int) -> Iterator[tuple[Minibatch, Tensor | float | None]]:
    """A minibatch in pieces along B, each with its share of the weight; None for the whole."""
    if pieces == 1:
        yield batch, None
        return
    total = batch.columns["values"].shape[1]
    bounds = [total * piece // pieces for piece in range(pieces + 1)]
    for first, last in pairwise(bounds):
        if first == last:
            continue
        rows = slice(first, last)
        piece = Minibatch(
            {name: column[:, rows] for name, column in batch.columns.items()},
            {key: leaf[:, rows] for key, leaf in batch.obs.items()},
            {key: part[rows] for key, part in batch.state.items()},
            None if batch.weights is None else batch.weights[:, rows],
            None if batch.advantages is None else batch.advantages[:, rows],
        )
        share: Tensor | float = (last - first) / total
        if batch.weights is not None and piece.weights is not None:
            share = piece.weights.sum() / batch.weights.sum().clamp(min=1.0)
        yield piece, share


def _with_normal_advantages(batch: Minibatch, config: PPOConfig) -> Minibatch:
    """Normalised over the whole minibatch, before it is split for accumulation, unless they are."""
    if not config.normalize_advantages or batch.advantages is not None:
        return batch
    rule = scale_advantages if config.advantage_estimator == "vtrace" else normalize_advantages
    return replace(batch, advantages=rule(batch.columns["advantages"], batch.weights))


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
