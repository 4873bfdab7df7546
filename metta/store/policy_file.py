"""Policy files: weights and normalisers as safetensors, with a JSON manifest."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from metta.agent.policy import Policy
from metta.errors import NonFiniteError, PolicyError
from metta.files import atomic_write

__all__ = ["load_weights", "save_policy"]

FORMAT = "metta-policy"
FORMAT_VERSION = 1
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, RecursionError)


def save_policy(
    path: str | os.PathLike[str], policy: Policy, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write a policy's whole state atomically; `metadata` is plain data kept beside it.

    A policy with NaN or infinite weights is not written: `NonFiniteError`.
    """
    broken = [
        name
        for name, value in policy.state_dict().items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    if broken:
        raise NonFiniteError(f"the policy is not saved: {broken} hold NaN or infinity")
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "policy_architecture": policy.architecture_hash(),
        "policy_hash": policy.parameter_hash(),
        "observation_space": policy.obs_spec.describe(),
        "action_space": str(policy.action_space),
        "metadata": dict(metadata or {}),
    }
    # parameters are views of one flat vector: each gets its own storage in the file
    tensors = {name: value.detach().cpu().clone() for name, value in policy.state_dict().items()}
    return atomic_write(
        path,
        lambda target: safetensors.torch.save_file(
            tensors, target, metadata={"manifest": json.dumps(manifest)}
        ),
    )


def load_weights(path: str | os.PathLike[str], policy: Policy) -> dict[str, Any]:
    """Put a file's weights into a policy of the same architecture; returns the file's metadata."""
    source = Path(path)
    if not source.is_file():
        raise PolicyError(f"there is no policy file {str(source)!r}")
    try:
        with safetensors.safe_open(source, framework="pt") as opened:
            manifest = json.loads((opened.metadata() or {})["manifest"])
            found = manifest["format"], manifest["format_version"]
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a mapping
    except (*_UNREADABLE, safetensors.SafetensorError) as error:
        raise PolicyError(f"{str(source)!r} is not a policy written by metta: {error}") from error
    if found != (FORMAT, FORMAT_VERSION):
        raise PolicyError(
            f"{str(source)!r} has format {found[0]!r} version {found[1]!r}; this version of metta reads "
            f"{FORMAT!r} version {FORMAT_VERSION}"
        )
    if manifest["policy_architecture"] != policy.architecture_hash():
        raise PolicyError(
            f"{str(source)!r} holds a policy for {manifest['action_space']} and observations "
            f"{manifest['observation_space']}, which does not fit this policy's layers or spaces"
        )
    policy.load_state_dict(tensors)
    metadata: dict[str, Any] = manifest["metadata"]
    return metadata
