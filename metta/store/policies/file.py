"""Policy files: weights and normalisers as safetensors, with a JSON manifest.

The manifest's ``format_version`` is raised when a part is added, removed or means something else. A file is
read by its own version's list of parts: all of them must be there, and no others. Versions: 1 has the
spaces as text only; 2 adds ``spaces`` (both in full, null if they have no description as data),
``agent`` (the settings of the policy) and ``built_in`` (whether metta can build the network from them).
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import Space
from torch import Tensor

from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.policy import Policy
from metta.errors import NonFiniteError, PolicyError, SpaceError, UnsafeFileError
from metta.secrets import scrub_all
from metta.stateful import digest_of
from metta.store.checkpoints.finite_state import non_finite
from metta.store.content_digest import CONTENT_KEY, save_with_manifest, verify_content
from metta.store.policies.spaces import describe_space
from metta.store.safe_read import DTYPES, OpenTensors, open_tensors
from metta.untrusted.json_files import brief, parse_json

__all__ = [
    "FrozenPolicy",
    "OpenPolicy",
    "freeze_policy",
    "load_weights",
    "open_policy",
    "put_weights",
    "read_policy_manifest",
    "read_weights",
    "save_policy",
]

FORMAT = "metta-policy"
FORMAT_VERSION = 2
_FIRST_PARTS = {"policy_architecture": str, "policy_hash": str, "observation_space": object,
                "action_space": str, "metadata": dict}  # fmt: skip
_REBUILDING = {"spaces": dict | None, "agent": dict | None, "built_in": bool}
_PARTS: dict[int, dict[str, Any]] = {1: _FIRST_PARTS, 2: {**_FIRST_PARTS, **_REBUILDING}}
"""What a manifest of each readable version holds, apart from the format and the digest."""
_UNDESCRIBED = {"agent": None, "built_in": False}


@dataclass(frozen=True)
class FrozenPolicy:
    """A policy's weights and what it was made for, as they were at one moment."""

    tensors: dict[str, Tensor]
    """A copy of the state, on the host."""
    description: dict[str, Any]
    spaces: tuple[Space[Any], Space[Any]] | None = None
    """Of observations and actions; described only when the file is written, in the background."""


def freeze_policy(policy: Policy, architecture: str | None = None) -> FrozenPolicy:
    """A copy of a policy's whole state; `NonFiniteError` if a weight is NaN or infinite.

    `architecture` is its `architecture_hash`, if the caller has it already.
    """
    state = policy.state_dict()
    broken = non_finite(state)
    if broken:
        raise NonFiniteError(f"the policy is not saved: {broken} hold NaN or infinity")
    description = {
        "policy_architecture": architecture or policy.architecture_hash(),
        "observation_space": policy.obs_spec.describe(),
        "action_space": str(policy.action_space),
        "agent": dataclasses.asdict(policy.config),
        "built_in": type(policy.module) in (ActorCritic, RecurrentActorCritic),
    }
    # parameters are views of one flat vector: each gets its own storage in the file
    tensors = {k: v.detach().cpu().clone() for k, v in state.items()}
    return FrozenPolicy(tensors, description, (policy.observation_space, policy.action_space))


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
        **_UNDESCRIBED,
        **frozen.description,
        "spaces": _described_spaces(frozen),
        "policy_hash": digest_of(frozen.tensors),  # here, in the background
        "metadata": scrub_all(dict(metadata or {})),
    }
    try:
        return save_with_manifest(path, frozen.tensors, manifest)
    except ValueError as error:
        raise PolicyError(f"the policy cannot be saved as {str(path)!r}: {error}") from error


@dataclass(frozen=True)
class OpenPolicy:
    """A policy file that is held open, so that it can be read even if it is removed meanwhile."""

    path: Path
    manifest: dict[str, Any]
    """The file's manifest; the tensors are not verified before `read`."""
    tensors: OpenTensors

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the tensors, from the header alone."""
        return [place.shape for place in self.tensors.announced.places.values()]

    def verify(self) -> None:
        """`UnsafeFileError` if the bytes are not those that were written."""
        verify_content(self.tensors, self.manifest)

    def read(self) -> dict[str, Tensor]:
        """Copies of the tensors, as they were written."""
        try:
            self.verify()
            tensors = self.tensors.load()
        except UnsafeFileError as error:
            raise PolicyError(str(error)) from error
        broken = non_finite(tensors)
        if broken:
            raise PolicyError(
                f"{str(self.path)!r} holds no usable policy: {brief(broken)} are NaN or infinite"
            )
        return tensors


@contextmanager
def open_policy(path: str | os.PathLike[str], *, sha256: str | None = None) -> Iterator[OpenPolicy]:
    """Open a policy file; a header that is wrong in any way is a `PolicyError`.

    `sha256` pins the file: one with another digest is refused.
    """
    source = Path(path)
    if not source.is_file():
        raise PolicyError(f"there is no policy file {str(source)!r}")
    try:
        with open_tensors(source) as tensors:
            _check_pin(source, tensors, sha256)
            yield OpenPolicy(source, _manifest_in(tensors, source), tensors)
    except UnsafeFileError as error:
        raise PolicyError(str(error)) from error


def _check_pin(path: Path, tensors: OpenTensors, sha256: str | None) -> None:
    """Check that a file has the pinned digest; None: any will do."""
    if sha256 is None:
        return
    found = tensors.sha256()
    if found != sha256.lower():
        raise PolicyError(
            f"{str(path)!r} is not the pinned file: its sha256 is {found}, not {sha256}"
        )


def load_weights(
    path: str | os.PathLike[str], policy: Policy, *, sha256: str | None = None
) -> dict[str, Any]:
    """Put a file's weights into a policy of the same architecture; returns the file's metadata.

    `sha256` pins the file: one with another digest is refused.
    """
    if not isinstance(policy, Policy):
        raise PolicyError(
            f"weights go into a Policy, got a {type(policy).__name__}; wrap the module, Policy(module, "
            "env.observation_space, env.action_space), or use PolicyStore(...).load(uri, env, policy)"
        )
    with open_policy(path, sha256=sha256) as opened:
        return put_weights(opened, policy)


def put_weights(opened: OpenPolicy, policy: Policy) -> dict[str, Any]:
    """`load_weights` of a file that is open already."""
    manifest = opened.manifest
    expected = {
        name: (value.dtype, tuple(value.shape)) for name, value in policy.state_dict().items()
    }
    places = opened.tensors.announced.places
    announced = {name: (DTYPES[at.dtype], at.shape) for name, at in places.items()}
    # the tensors too: a manifest may describe them wrongly
    if manifest["policy_architecture"] != policy.architecture_hash() or announced != expected:
        raise PolicyError(
            f"{str(opened.path)!r} holds a policy for {manifest['action_space'][:400]} and observations "
            f"{brief(manifest['observation_space'])}, which does not fit this policy's layers or spaces"
        )
    policy.load_state_dict(opened.read())
    metadata: dict[str, Any] = manifest["metadata"]
    return metadata


def read_policy_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a policy file; the weights are not read or verified."""
    with open_policy(path) as opened:
        return opened.manifest


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Copies of the tensors of a policy file, as they were written."""
    with open_policy(path) as opened:
        return opened.read()


def _described_spaces(frozen: FrozenPolicy) -> dict[str, Any] | None:
    """Both spaces as data; None if one has no description, so that saving does not fail."""
    if frozen.spaces is None:
        return None
    try:
        observation, action = map(describe_space, frozen.spaces)
    except SpaceError:
        return None
    return {"observation": observation, "action": action}


def _manifest_in(tensors: OpenTensors, source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = parse_json(
            tensors.announced.metadata["manifest"], allow_nan=True
        )
        version = manifest["format"], manifest["format_version"]
        if version[0] == FORMAT and type(version[1]) is int and version[1] in _PARTS:
            _require_parts(manifest, _PARTS[version[1]])
            return manifest
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"{str(source)!r} is not a policy written by metta: {error}") from error
    raise PolicyError(
        f"{str(source)!r} has format {brief(version[0])} version {brief(version[1])}; this version of "
        f"metta reads {FORMAT!r} version {min(_PARTS)} to {max(_PARTS)}"
    )


def _require_parts(manifest: dict[str, Any], parts: Mapping[str, Any]) -> None:
    wrong = [part for part, kind in parts.items() if not isinstance(manifest[part], kind)]
    if wrong:
        raise TypeError(f"its manifest has wrong types: {wrong}")
    unknown = sorted(manifest.keys() - parts.keys() - {"format", "format_version", CONTENT_KEY})
    if unknown:
        raise ValueError(f"its manifest has unknown entries: {brief(unknown)}")
