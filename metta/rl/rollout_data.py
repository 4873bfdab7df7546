"""Rollouts as plain columns ``dict[str, Tensor]``: checking, completing, joining and cutting them.

Columns are ``[T, N, ...]``, recurrent states ``[S, N, ...]`` (one per segment). A column that nobody
here knows is carried along and reaches custom losses that name it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from metta.agent.action_spec import draw_noise
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import Obs, State
from metta.agent.policy import Policy
from metta.errors import NonFiniteError, RolloutError
from metta.ops.diagnostics import all_finite
from metta.rl.experience import ROWS_PER_FORWARD, RolloutBuffer, obs_column, split_obs
from metta.rollout import Rollout
from metta.seeding import numpy_generator

__all__ = ["Minibatch", "check_rollout", "combine_rollouts", "cut_minibatch"]

STATE_PREFIX = "recurrent_state/"
_FLOAT_COLUMNS = ("values", "log_probs", "advantages", "returns", "rewards", "next_values")
_FLAG_COLUMNS = ("terminated", "truncated", "valid", "episode_starts", "action_masks")


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


def required_columns(policy: Policy) -> list[str]:
    """Columns without which nothing can be learned."""
    obs = [obs_column(policy.obs_spec, leaf.key) for leaf in policy.obs_spec.leaves]
    return [*obs, "actions", "log_probs", "values"]


def check_rollout(
    data: Mapping[str, Tensor], policy: Policy, architecture: str | None = None
) -> dict[str, Tensor]:
    """The columns on the policy's device, checked against it; the input is left alone.

    Raises `RolloutError` for what is missing or of the wrong shape, `NonFiniteError` for NaN and infinity,
    each naming column, step and row.
    """
    missing = [name for name in required_columns(policy) if name not in data]
    if "advantages" not in data or "returns" not in data:
        wanted = ["rewards", "terminated", "truncated", "next_values"]
        missing += [name for name in wanted if name not in data]
    if policy.is_recurrent:
        wanted = ["episode_starts", *(STATE_PREFIX + key for key in policy.initial_state(1))]
        missing += [name for name in wanted if name not in data]
    if missing:
        raise RolloutError(
            f"the rollout lacks {missing}; it has {sorted(data)}. Collect it with "
            "PPOTrainer.collect_rollouts or RolloutCollector, for the same policy"
        )
    _check_shapes(data, policy)
    _check_manifest(data, policy, architecture or policy.architecture_hash())
    kinds = dict.fromkeys(_FLOAT_COLUMNS, policy.dtype) | dict.fromkeys(_FLAG_COLUMNS, torch.bool)
    columns = {k: v.to(policy.device, kinds.get(k, v.dtype)) for k, v in data.items()}
    if "valid" not in columns:
        columns["valid"] = torch.ones_like(columns["values"], dtype=torch.bool)
    return columns if _are_all_valid(columns) else _without_invalid(columns)


def _without_invalid(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in which nothing that stands in invalid rows can spoil a product: 0 * NaN is NaN.

    Finite observations stay, since a recurrent policy has seen them.
    """
    invalid = ~columns["valid"]
    cleared = {name: columns[name] for name in (*_FLOAT_COLUMNS, "actions") if name in columns}
    for name, column in cleared.items():
        cleared[name] = column.masked_fill(_match(invalid, column), 0)
    for name, column in columns.items():
        if name.startswith("observations") and column.dtype.is_floating_point:
            cleared[name] = column.masked_fill(_match(invalid, column) & ~column.isfinite(), 0)
    return columns | cleared


def _match(flags: Tensor, column: Tensor) -> Tensor:
    """``[T, N]`` flags with as many axes as a column."""
    return flags.reshape(*flags.shape, *(1,) * (column.dim() - 2))


def _check_shapes(data: Mapping[str, Tensor], policy: Policy) -> None:
    lead = tuple(data["values"].shape)
    if len(lead) != 2:
        raise RolloutError(f"column 'values' has shape {lead}; it must be [T, N]")
    spec = policy.action_spec
    expected = {"actions": (*lead, *spec.action_shape)}
    if "action_masks" in data:
        expected["action_masks"] = (*lead, spec.mask_size)
    for leaf in policy.obs_spec.leaves:
        expected[obs_column(policy.obs_spec, leaf.key)] = (*lead, *leaf.shape)
    for name, column in data.items():
        shape = tuple(column.shape)
        if name in expected and shape != expected[name]:
            raise RolloutError(
                f"column {name!r} has shape {shape}, but the policy for observation space "
                f"{policy.observation_space} and action space {policy.action_space} needs "
                f"{expected[name]}; was the rollout collected in another environment?"
            )
        if name.startswith(STATE_PREFIX):
            if shape[1:2] != lead[1:] or not shape[0] or lead[0] % shape[0]:
                raise RolloutError(
                    f"column {name!r} has shape {shape}; it must hold one state per segment, "
                    f"[S, {lead[1]}, ...] where S divides {lead[0]}"
                )
        elif shape[:2] != lead:
            raise RolloutError(f"column {name!r} has shape {shape}; it must begin with {lead}")
    if data["actions"].dtype.is_floating_point != spec.action_dtype.is_floating_point:
        raise RolloutError(
            f"column 'actions' holds {data['actions'].dtype}, but action space "
            f"{policy.action_space} needs {spec.action_dtype}"
        )


def _check_manifest(data: Mapping[str, Tensor], policy: Policy, architecture: str) -> None:
    manifest = getattr(data, "manifest", None)
    if not manifest:
        return
    spaces = [str(policy.observation_space), str(policy.action_space)]
    if manifest.get("spaces", spaces) != spaces:
        raise RolloutError(
            f"the rollout comes from {manifest.get('env_id')!r} with other spaces "
            f"({' and '.join(manifest['spaces'])}) than this policy's ({' and '.join(spaces)})"
        )
    found = manifest.get("policy_architecture")
    if found is not None and found != architecture:
        raise RolloutError(
            "the rollout was collected by a policy of another architecture or other spaces "
            f"({found[:12]}, this one is {architecture[:12]}); learn from it with the policy that "
            "collected it, or drop its recurrent states and log_probs and recompute them"
        )


def _are_all_valid(columns: Mapping[str, Tensor]) -> bool:
    """Whether every row is valid; `NonFiniteError` where a valid one holds NaN or infinity.

    A device is waited for once, unless something is wrong.
    """
    names = [
        name
        for name, column in columns.items()
        if (name in _FLOAT_COLUMNS or name.startswith("observations"))
        and column.dtype.is_floating_point
    ]
    kind = columns["values"].dtype
    sums = [columns[name].sum(dtype=kind) for name in names]
    *found, all_valid = torch.stack([*sums, columns["valid"].all().to(kind)]).tolist()
    # a sum of finite numbers may be too large
    suspects = [name for name, total in zip(names, found, strict=True) if not math.isfinite(total)]
    _check_finite(columns, suspects)
    return bool(all_valid)


def _check_finite(columns: Mapping[str, Tensor], names: Sequence[str]) -> None:
    valid = columns["valid"]
    for name in names:
        column = columns[name]
        if not all_finite(column):
            bad = ~column.isfinite().flatten(2).all(-1) if column.dim() > 2 else ~column.isfinite()
            places = (bad & valid).nonzero()
            if len(places):
                step, row = places[0].tolist()
                raise NonFiniteError(
                    f"column {name!r} is not finite at step {step}, row {row} (and "
                    f"{len(places) - 1} more places); look at the environment and the policy there"
                )


def combine_rollouts(rollouts: Sequence[Mapping[str, Tensor]]) -> Rollout:
    """One rollout from several, side by side along N; all need the same columns and the same T.

    combined = combine_rollouts([worker.collect_rollouts(1000) for worker in workers])
    """
    if not rollouts:
        raise RolloutError("combine_rollouts needs at least one rollout, got none")
    first = rollouts[0]
    for index, other in enumerate(rollouts):
        if other.keys() != first.keys():
            raise RolloutError(
                f"rollout {index} has other columns than rollout 0: "
                f"{sorted(other.keys() ^ first.keys())} are in only one of them"
            )
        for name, column in other.items():
            wanted = (first[name].shape[0], *first[name].shape[2:])
            if (column.shape[0], *column.shape[2:]) != wanted:
                raise RolloutError(
                    f"column {name!r} of rollout {index} has shape {tuple(column.shape)}, rollout 0 "
                    f"has {tuple(first[name].shape)}; only the second axis (N) may differ, so "
                    "collect all with the same n_steps and the same kind of environment"
                )
    columns = {name: torch.cat([r[name] for r in rollouts], 1) for name in first}
    return Rollout(columns, _common_manifest(rollouts))


def _common_manifest(rollouts: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    manifests = [getattr(rollout, "manifest", {}) for rollout in rollouts]
    first = manifests[0]
    return {k: v for k, v in first.items() if all(m.get(k) == v for m in manifests)}


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


def drawn_rollout(policy: Policy, buffer: RolloutBuffer) -> dict[str, Tensor]:
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
    for name in _FLOAT_COLUMNS:
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
    columns["log_probs"] = present_log_probs(columns, policy)
    return columns


def num_valid(data: Mapping[str, Tensor]) -> int:
    """Samples that count."""
    return int(data["valid"].sum()) if "valid" in data else data["values"].numel()


def has_nothing(data: Mapping[str, Tensor]) -> bool:
    """Whether there is nothing to learn from."""
    columns = list(data.values())
    if not columns or all(column.numel() == 0 for column in columns):
        return True
    return "valid" in data and not bool(data["valid"].any())


def num_items(columns: Mapping[str, Tensor], policy: Policy) -> int:
    """What a permutation runs over: samples, or segments for recurrent policies."""
    steps, rows = columns["values"].shape
    if not policy.is_recurrent:
        return steps * rows
    name = STATE_PREFIX + next(iter(policy.initial_state(1)))
    return int(columns[name].shape[0]) * rows


@torch.no_grad()
def present_log_probs(columns: Mapping[str, Tensor], policy: Policy) -> Tensor:
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
