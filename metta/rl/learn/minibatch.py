"""Minibatches: samples, or segments for recurrent policies, cut from the columns of a rollout."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from metta.agent.actions.action_spec import draw_noise
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import Obs, State
from metta.agent.policy import Policy
from metta.rl.collect.buffer import ROWS_PER_FORWARD, RolloutBuffer, obs_column, split_obs
from metta.rl.collect.rollout_data import FLOAT_COLUMNS, STATE_PREFIX
from metta.seeding import numpy_generator

__all__ = [
    "Minibatch",
    "current_log_probs",
    "cut_minibatch",
    "num_items",
    "split_rows",
    "synthetic_rollout",
]


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


def cut_minibatch(
    columns: Mapping[str, Tensor], names: Sequence[str], index: Tensor, policy: Policy
) -> Minibatch:
    """Gather some columns at `index`: samples of the flat batch, or segments of a recurrent one."""
    state: State = {}
    if policy.is_recurrent:
        segments, rows = columns[STATE_PREFIX + next(iter(policy.initial_state(1)))].shape[:2]
        which, row = index // rows, index % rows
        gathered = {
            name: columns[name].unflatten(0, (segments, -1))[which, :, row].transpose(0, 1)
            for name in names
        }
        state = {
            name.removeprefix(STATE_PREFIX): column[which, row]
            for name, column in columns.items()
            if name.startswith(STATE_PREFIX)
        }
    else:
        gathered = {
            name: columns[name].flatten(0, 1).index_select(0, index)[None] for name in names
        }
    weights = gathered["valid"].to(gathered["values"].dtype) if "valid" in gathered else None
    return Minibatch(gathered, split_obs(policy.obs_spec, gathered), state, weights)


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


def num_items(columns: Mapping[str, Tensor], policy: Policy) -> int:
    """What a permutation runs over: samples, or segments for recurrent policies."""
    steps, rows = columns["values"].shape
    if not policy.is_recurrent:
        return steps * rows
    name = STATE_PREFIX + next(iter(policy.initial_state(1)))
    return int(columns[name].shape[0]) * rows


@torch.no_grad()
def current_log_probs(columns: Mapping[str, Tensor], policy: Policy) -> Tensor:
    """Log-probability ``[T, N]`` of each action under the policy of this moment."""
    steps = columns["values"].shape[0]
    obs = [obs_column(policy.obs_spec, leaf.key) for leaf in policy.obs_spec.leaves]
    wanted = [*obs, "actions", "values", "episode_starts", "action_masks"]
    names = [name for name in wanted if name in columns]
    items = torch.arange(num_items(columns, policy), device=policy.device)
    length = columns["values"].numel() // len(items)
    parts = []
    with evaluating(policy):
        for index in items.split(max(1, ROWS_PER_FORWARD // length)):
            batch = cut_minibatch(columns, names, index, policy)
            output = policy(batch.obs, batch.state, batch.columns.get("episode_starts"))
            actions, legal = batch.columns["actions"], batch.columns.get("action_masks")
            parts.append(policy.action_spec.log_prob(output.dist_params, actions, legal))
    found: Tensor = torch.cat(parts, 1)  # [L, S * N], with L = 1 for feed-forward policies
    if policy.is_recurrent:
        found = found.unflatten(1, (steps // length, -1)).transpose(0, 1)
    return found.reshape(columns["values"].shape)


def synthetic_rollout(policy: Policy, buffer: RolloutBuffer) -> dict[str, Tensor]:
    """Columns laid out as those of the buffer's rollouts, before there is one.

    Its numbers are drawn and say nothing, but differ, so that no gradient is mere rounding.
    """
    lead, device = (buffer.horizon, buffer.num_rows), policy.device
    generator = numpy_generator(0, "drawn rollout")
    columns: dict[str, Tensor] = {}
    for leaf in policy.obs_spec.leaves:
        drawn = torch.from_numpy(leaf.draw(generator, *lead))
        columns[obs_column(policy.obs_spec, leaf.key)] = drawn.to(
            device, buffer.obs[leaf.key].dtype
        )
    spec = policy.action_spec
    noise = torch.from_numpy(draw_noise(spec, generator, *lead)).to(device)
    actions = spec.sample(noise.new_zeros(*lead, spec.num_params), noise, None)
    columns["actions"] = actions.to(buffer.actions.dtype)
    for name in FLOAT_COLUMNS:
        numbers = torch.from_numpy(generator.standard_normal(lead))
        columns[name] = numbers.to(device, policy.dtype)
    for name in ("terminated", "truncated", "episode_starts"):
        columns[name] = torch.zeros(lead, dtype=torch.bool, device=device)
    columns["valid"] = torch.ones(lead, dtype=torch.bool, device=device)
    if buffer.masks is not None:
        columns["action_masks"] = torch.ones_like(buffer.masks[:-1], device=device)
    for key, part in buffer.states.items():
        columns[STATE_PREFIX + key] = torch.zeros_like(part[:-1])
    # the policy's own: an update from the start of its trust region
    columns["log_probs"] = current_log_probs(columns, policy)
    return columns
