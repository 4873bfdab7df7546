"""One update from the shards of a rollout: each gives its part of every gradient."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metta.agent.policy import Policy
from metta.errors import RolloutError
from metta.ops.losses import normalize_by
from metta.ops.running_moments import Moments, batch_moments, merge, pack, unpack
from metta.rl.collect.buffer import STATE_PREFIX, RolloutBuffer
from metta.rl.collect.rollout_data import check_rollout, collected_columns
from metta.rl.collect.sharded_collector import Experience, ShardedExperience
from metta.rl.learn.custom_losses import Metrics
from metta.rl.learn.driver import cut_minibatch, gather_columns
from metta.rl.learn.optimizer import GradientStepper
from metta.rl.learn.update import (
    Minibatch,
    UpdateCoefs,
    UpdateRules,
    add_gradients,
    finish_minibatch,
)
from metta.rl.learn.update_log import LOSS_NAMES, UpdateLog
from metta.rl.ranks import Ranks

__all__ = ["merged_moments", "run_shards", "shards_of"]

_NUM_TERMS = len(LOSS_NAMES)

Reseed = Callable[[int, int], None]
"""Called with a shard and a minibatch: torch's generators begin anew, for layers that draw numbers."""


def shards_of(
    experience: Experience | Mapping[str, Tensor],
    num_parts: int,
    policy: Policy,
    architecture: str,
) -> list[dict[str, Tensor]]:
    """Checked columns ``[T, N / num_parts, ...]`` of each shard, contiguous."""
    if isinstance(experience, ShardedExperience):
        return [collected_columns(part) for part in experience.parts]
    if isinstance(experience, RolloutBuffer):
        columns = collected_columns(experience)
    else:
        columns = check_rollout(experience, policy, architecture)
    rows = columns["values"].shape[1]
    if rows % num_parts:
        raise RolloutError(
            f"the rollout has {rows} rows, which do not split into {num_parts} equal shards; learn from a "
            f"multiple of {num_parts} rows, or set num_shards to a divisor of {rows}"
        )
    if num_parts == 1:
        return [columns]
    chunks = {name: column.chunk(num_parts, 1) for name, column in columns.items()}
    return [
        {name: parts[number].contiguous() for name, parts in chunks.items()}
        for number in range(num_parts)
    ]


def merged_moments(ranks: Ranks, shards: Sequence[Moments], shape: tuple[int, ...]) -> Moments:
    """Moments of all shards together."""

    def merged(left: Tensor, right: Tensor) -> Tensor:
        return pack(merge(unpack(left, shape), unpack(right, shape)))

    return unpack(ranks.reduce([pack(moments) for moments in shards], merged), shape)


def run_shards(
    rules: UpdateRules,
    stepper: GradientStepper,
    shards: Sequence[Mapping[str, Tensor]],
    passes: Sequence[Iterable[Sequence[Tensor]]],
    coefs: UpdateCoefs,
    ranks: Ranks,
    reseed: Reseed,
) -> UpdateLog:
    """All passes over a rollout whose `shards` of this rank are columns ``[T, N / S, ...]``.

    `passes` gives for each of these shards what a driver's `passes` gives. Minibatch k is the union of the
    k-th minibatches of all shards. Its gradient, terms and moments of advantages are sums over shards, so
    all ranks take the same steps and stop at the same minibatch.
    """
    log = UpdateLog()
    stopped = torch.zeros((), dtype=torch.bool, device=coefs.clip.device)
    names = [[n for n in columns if not n.startswith(STATE_PREFIX)] for columns in shards]
    number = 0
    for minibatches in zip(*passes, strict=True):
        moments = _moments_of_pass(rules, shards, minibatches, ranks)
        for place, indices in enumerate(zip(*minibatches, strict=True)):
            pieces = [
                cut_minibatch(columns, own, index, rules.policy)
                for columns, own, index in zip(shards, names, indices, strict=True)
            ]
            vectors: list[Tensor] = []
            labels: list[str] = []
            for shard, piece in zip(ranks.shards, pieces, strict=True):
                reseed(shard, number)
                vector, labels = _part_of_gradient(rules, stepper, piece, coefs, moments[place])
                vectors.append(vector)
            total = ranks.reduce(vectors)
            first = _NUM_TERMS + len(labels)
            stepper.set_gradient(total[first:])
            empty = moments[place].count == 0
            row, stopped = finish_minibatch(rules, stepper, total[:_NUM_TERMS], empty, stopped)
            log.add(row, [dict(zip(labels, total[_NUM_TERMS:first], strict=True))])
            number += 1
            if rules.is_over(stopped):
                return log
    return log


def _moments_of_pass(
    rules: UpdateRules,
    shards: Sequence[Mapping[str, Tensor]],
    minibatches: Sequence[Sequence[Tensor]],
    ranks: Ranks,
) -> list[Moments]:
    """Moments of the advantages of each minibatch of a pass, reduced all at once."""
    tables = []
    for columns, indices in zip(shards, minibatches, strict=True):
        names = [name for name in ("advantages", "valid") if name in columns]
        parts = [gather_columns(columns, names, index, rules.policy) for index in indices]
        tables.append(torch.stack([pack(_moments_of(part)) for part in parts]))

    def merged(left: Tensor, right: Tensor) -> Tensor:
        pairs = zip(left.unbind(), right.unbind(), strict=True)
        return torch.stack([pack(merge(unpack(a), unpack(b))) for a, b in pairs])

    return [unpack(row) for row in ranks.reduce(tables, merged).unbind()]


def _moments_of(part: Mapping[str, Tensor]) -> Moments:
    advantages = part["advantages"].flatten()
    weights = torch.ones_like(advantages)
    if "valid" in part:
        weights = part["valid"].flatten().to(advantages.dtype)
    return batch_moments(advantages, weights)


def _part_of_gradient(
    rules: UpdateRules,
    stepper: GradientStepper,
    piece: Minibatch,
    coefs: UpdateCoefs,
    moments: Moments,
) -> tuple[Tensor, list[str]]:
    """A shard's share of loss terms, of custom metrics (whose names come with it) and of the gradient."""
    count = piece.columns["values"].numel() if piece.weights is None else piece.weights.sum()
    if rules.config.normalize_advantages:
        is_centred = rules.config.advantage_estimator != "vtrace"
        advantages = piece.columns["advantages"]
        piece = replace(
            piece,
            advantages=normalize_by(advantages, piece.weights, moments, is_centred=is_centred),
        )
    terms, metrics = add_gradients(rules, stepper, piece, coefs)
    gradient = stepper.gradient()
    share = (count / moments.count.clamp(min=1.0)).to(gradient.dtype)
    means = _mean_metrics(metrics)
    found = [torch.as_tensor(v, dtype=terms.dtype, device=terms.device) for v in means.values()]
    extra = [torch.stack(found)] if found else []
    return torch.cat([terms, *extra, gradient]) * share, list(means)


def _mean_metrics(pieces: Sequence[Metrics]) -> dict[str, Tensor | float]:
    """Means over the pieces of gradient accumulation."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: sum(piece[name] for piece in pieces if name in piece)
        / sum(name in piece for piece in pieces)
        for name in sorted(names)
    }
