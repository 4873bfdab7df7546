"""Policy files: weights and normalisers as safetensors, with a JSON manifest."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from metta.agent.policy import Policy
from metta.errors import NonFiniteError, PolicyError
from metta.files import atomic_write

__all__ = [
    "FrozenPolicy",
    "freeze_policy",
    "load_weights",
    "read_policy_manifest",
    "read_weights",
    "save_policy",
]

FORMAT = "metta-policy"
FORMAT_VERSION = 1
_UNREADABLE = (OSError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class FrozenPolicy:
    """A policy's weights and what it was made for, as they were at one moment."""

    tensors: dict[str, Tensor]
    """State in memory of its own, on the host."""
    description: dict[str, Any]


def freeze_policy(policy: Policy) -> FrozenPolicy:
    """A copy of a policy's whole state; `NonFiniteError` where a weight is NaN or infinite."""
    state = policy.state_dict()
    broken = [
        name
        for name, value in state.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    if broken:
        raise NonFiniteError(f"the policy is not saved: {broken} hold NaN or infinity")
    description = {
        "policy_architecture": policy.architecture_hash(),
        "policy_hash": policy.parameter_hash(),
        "observation_space": policy.obs_spec.describe(),
        "action_space": str(policy.action_space),
    }
    # parameters are views of one flat vector: each gets its own storage in the file
    return FrozenPolicy({k: v.detach().cpu().clone() for k, v in state.items()}, description)


def save_policy(
    path: str | os.PathLike[str],
    policy: Policy | FrozenPolicy,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy's whole state atomically; `metadata` is plain data kept beside it.

    A policy with NaN or infinite weights is not written: `NonFiniteError`.
    """
    frozen = policy if isinstance(policy, FrozenPolicy) else freeze_policy(policy)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **frozen.description,
        "metadata": dict(metadata or {}),
    }
    return atomic_write(
        path,
        lambda target: safetensors.torch.save_file(
            frozen.tensors, target, metadata={"manifest": json.dumps(manifest)}
        ),
    )


def load_weights(path: str | os.PathLike[str], policy: Policy) -> dict[str, Any]:
    """Put a file's weights into a policy of the same architecture; returns the file's metadata."""
    source = Path(path)
    if not isinstance(policy, Policy):
        raise PolicyError(
            f"weights go into a Policy, got a {type(policy).__name__}; wrap the module, Policy(module, "
            "env.observation_space, env.action_space), or use PolicyStore(...).load(uri, env, policy)"
        )
    manifest = read_policy_manifest(source)
    if manifest["policy_architecture"] != policy.architecture_hash():
        raise PolicyError(
            f"{str(source)!r} holds a policy for {manifest['action_space']} and observations "
            f"{manifest['observation_space']}, which does not fit this policy's layers or spaces"
        )
    policy.load_state_dict(read_weights(source))
    metadata: dict[str, Any] = manifest["metadata"]
    return metadata


def read_policy_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a policy file says about itself; the weights are not read."""
    source = Path(path)
    with _opened(source) as opened:
        manifest: dict[str, Any] = json.loads((opened.metadata() or {})["manifest"])
        found = manifest["format"], manifest["format_version"]
        if found == (FORMAT, FORMAT_VERSION):
            _require_parts(manifest)
            return manifest
    raise PolicyError(
        f"{str(source)!r} has format {found[0]!r} version {found[1]!r}; this version of metta reads "
        f"{FORMAT!r} version {FORMAT_VERSION}"
    )


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a policy file, in memory of their own."""
    with _opened(Path(path)) as opened:
        return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  # not a mapping


def _require_parts(manifest: dict[str, Any]) -> None:
    strings = ("policy_architecture", "policy_hash", "action_space")
    wrong = [part for part in strings if not isinstance(manifest[part], str)]
    if wrong or not isinstance(manifest["metadata"], dict):
        raise TypeError(f"its manifest has wrong types: {wrong or ['metadata']}")


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[Any]:
    """An open policy file; whatever cannot be read in it is a `PolicyError`."""
    if not source.is_file():
        raise PolicyError(f"there is no policy file {str(source)!r}")
    try:
        with safetensors.safe_open(source, framework="pt") as opened:
            yield opened
    except (*_UNREADABLE, safetensors.SafetensorError) as error:
        raise PolicyError(f"{str(source)!r} is not a policy written by metta: {error}") from error
