"""Rollouts as plain columns ``dict[str, Tensor]``: checking, completing and joining them.

Columns are ``[T, N, ...]``, recurrent states ``[S, N, ...]`` (one per segment). An unknown
column is carried along and reaches custom losses that name it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metta.agent.policy import Policy
from metta.errors import RolloutError
from metta.rl.collect.buffer import (
    FLOAT_COLUMNS,
    STATE_PREFIX,
    RolloutBuffer,
    checked_columns,
    obs_column,
)
from metta.rollout import Rollout
from metta.stateful import digest_of
from metta.train.train_config import TrainingConfig
from metta.versions import library_versions

__all__ = [
    "check_rollout",
    "collected_columns",
    "combine_rollouts",
    "empty_rollout",
    "is_empty_rollout",
    "num_valid",
    "origin_of",
]

_FLAG_COLUMNS = ("terminated", "truncated", "valid", "episode_starts", "action_masks")


def collected_columns(rollout: RolloutBuffer | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns of a rollout, wherever it is; a buffer has them once it was collected into."""
    columns = rollout.columns if isinstance(rollout, RolloutBuffer) else rollout
    if not isinstance(columns, Mapping) or not columns:
        raise RolloutError(
            f"this {type(rollout).__name__} holds no rollout; collect one first, with "
            "RolloutCollector.collect or PPOTrainer.collect_rollouts"
        )
    return dict(columns)


def empty_rollout(num_rows: int) -> Rollout:
    """A rollout of no steps."""
    names = ("rewards", "values", "log_probs", "advantages", "returns")
    return Rollout({name: torch.zeros(0, num_rows) for name in names})


def required_columns(policy: Policy) -> list[str]:
    """Columns without which nothing can be learned."""
    obs = [obs_column(policy.obs_spec, leaf.key) for leaf in policy.obs_spec.leaves]
    return [*obs, "actions", "log_probs", "values"]


def check_rollout(
    data: Mapping[str, Tensor], policy: Policy, architecture: str | None = None
) -> dict[str, Tensor]:
    """The columns on the policy's device, checked against it; the input is not changed.

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
    kinds = dict.fromkeys(FLOAT_COLUMNS, policy.dtype) | dict.fromkeys(_FLAG_COLUMNS, torch.bool)
    columns = {k: v.to(policy.device, kinds.get(k, v.dtype)) for k, v in data.items()}
    if "valid" not in columns:
        columns["valid"] = torch.ones_like(columns["values"], dtype=torch.bool)
    floats = [k for k in columns if k in FLOAT_COLUMNS or k.startswith("observations")]
    return checked_columns(columns, floats)


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


def origin_of(policy: Policy, config: TrainingConfig, env_name: str | None) -> dict[str, Any]:
    """What the manifests of all rollouts of one collector have in common, as plain data."""
    return {
        "policy_architecture": policy.architecture_hash(),
        "config_hash": digest_of(repr(config)), "env_id": env_name,
        "spaces": [str(policy.observation_space), str(policy.action_space)],
        "seed": config.trainer.seed, "versions": dict(library_versions()),
    }  # fmt: skip


def num_valid(data: Mapping[str, Tensor]) -> int:
    """Samples that count."""
    return int(data["valid"].sum()) if "valid" in data else data["values"].numel()


def is_empty_rollout(data: Mapping[str, Tensor]) -> bool:
    """Whether the rollout holds nothing to learn from."""
    columns = list(data.values())
    if not columns or all(column.numel() == 0 for column in columns):
        return True
    return "valid" in data and not bool(data["valid"].any())
