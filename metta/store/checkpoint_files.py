"""One checkpoint, one folder: written beside its place, made durable, and committed by one rename."""

import json
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from metta.agent.policy import Policy
from metta.errors import CheckpointError, MettaWarning, PolicyError
from metta.files import make_durable, sha256_of
from metta.store.policy_file import FrozenPolicy, freeze_policy, read_weights, save_policy
from metta.store.state_tree import pack_state, unpack_state

__all__ = [
    "Checkpoint",
    "CheckpointEntry",
    "check_file",
    "checkpoint_folders",
    "free_path",
    "list_checkpoints",
    "plain_metadata",
    "read_checkpoint",
    "read_entry",
    "read_newest_checkpoint",
    "score_of",
    "write_checkpoint",
]

FORMAT = "metta-checkpoint"
FORMAT_VERSION = 1
POLICY_FILE, TENSOR_FILE, TREE_FILE = "policy.safetensors", "state.safetensors", "state.json"
MANIFEST_FILE = "manifest.json"
TEMPORARY = ".tmp-"
"""How names begin of folders that are being written or removed; they never look like checkpoints."""

_FILES = (POLICY_FILE, TENSOR_FILE, TREE_FILE)
_NAME = re.compile(r"epoch_(\d{6,})(?:\.(\d+))?")
_POLICY = "policy"
"""The component whose tensors are in the policy file, and nowhere else."""
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class CheckpointEntry:
    """What a checkpoint's manifest says."""

    path: Path
    epoch: int
    agent_step: int
    metadata: dict[str, Any]

    @property
    def policy_file(self) -> Path:
        """The policy alone."""
        return self.path / POLICY_FILE

    @property
    def score(self) -> float | None:
        """See `score_of`."""
        return score_of(self.metadata)


@dataclass(frozen=True)
class Checkpoint(CheckpointEntry):
    """A checkpoint that was read and verified."""

    snapshot: dict[str, dict[str, Any]] = field(repr=False)
    """``name -> {"version", "state"}`` for every component, as of `StateRegistry.snapshot`."""

    @property
    def optimizer_state(self) -> dict[str, Any]:
        """State of the component called `optimizer`."""
        state: dict[str, Any] = self.snapshot["optimizer"]["state"]
        return state


def score_of(metadata: Mapping[str, Any]) -> float | None:
    """The finite number under ``score``, if there is one; higher is better."""
    found = metadata.get("score")
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def write_checkpoint(
    folder: str | os.PathLike[str],
    snapshot: Mapping[str, Mapping[str, Any]],
    policy: Policy | FrozenPolicy,
    metadata: Mapping[str, Any],
) -> Path:
    """Commit a checkpoint to ``folder/epoch_000120`` and return that path.

    `metadata` is plain data with ``epoch`` and ``agent_step``. The component called `policy`, where the
    snapshot has one, is the given policy. A checkpoint is never overwritten: a second one of the same
    epoch becomes ``epoch_000120.2`` and supersedes the first. Whatever goes wrong leaves the folder as
    it was.
    """
    frozen = policy if isinstance(policy, FrozenPolicy) else freeze_policy(policy)
    root, described = Path(folder), plain_metadata(metadata)
    epoch = int(described["epoch"])
    temporary = root / f"{TEMPORARY}{uuid.uuid4().hex}-epoch_{epoch:06d}"
    try:
        temporary.mkdir(parents=True)
        _fill(temporary, snapshot, frozen, described)
        target = free_path(root, epoch)
        temporary.rename(target)
        make_durable(root)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"the checkpoint of epoch {epoch} could not be written to {str(root)!r}: {error}; older "
            "checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _fill(
    folder: Path,
    snapshot: Mapping[str, Mapping[str, Any]],
    policy: FrozenPolicy,
    metadata: Mapping[str, Any],
) -> None:
    parts = {
        name: {"version": part["version"]} if name == _POLICY else part
        for name, part in snapshot.items()
    }
    tree, tensors = pack_state(parts)
    save_policy(folder / POLICY_FILE, policy, metadata)
    safetensors.torch.save_file(tensors, folder / TENSOR_FILE)
    _write_json(folder / TREE_FILE, tree)
    make_durable(folder / TENSOR_FILE)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "epoch": int(metadata["epoch"]),
        "agent_step": int(metadata["agent_step"]),
        "metadata": pack_state(metadata)[0],
        "files": {name: _measure(folder / name) for name in _FILES},
    }
    _write_json(folder / MANIFEST_FILE, manifest)
    make_durable(folder)


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as JSON knows it; single numbers of NumPy and torch become Python's."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(metadata, default=lambda value: value.item()))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"metadata must be plain data (numbers, strings, lists, mappings): {error}"
        ) from error
    return plain


def _measure(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, allow_nan=False, indent=1))
    make_durable(path)


def free_path(root: Path, epoch: int) -> Path:
    """Where the next checkpoint of an epoch goes."""
    path, number = root / f"epoch_{epoch:06d}", 1
    while path.exists():
        number += 1
        path = root / f"epoch_{epoch:06d}.{number}"
    return path


def checkpoint_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """Folders with the names of checkpoints, oldest first, whatever they hold."""
    found = []
    root = Path(folder)
    for path in root.iterdir() if root.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append(((int(match[1]), int(match[2] or 1)), path))
    return [path for _, path in sorted(found)]


def list_checkpoints(folder: str | os.PathLike[str]) -> list[CheckpointEntry]:
    """Complete checkpoints, oldest first; of contents only the sizes are compared."""
    entries = []
    for path in checkpoint_folders(folder):
        try:
            entries.append(read_entry(path))
        except CheckpointError:
            continue
    return entries


def read_entry(path: str | os.PathLike[str]) -> CheckpointEntry:
    """What a checkpoint says about itself; files that are missing or cut are a `CheckpointError`."""
    source = Path(path)
    manifest = _read_manifest(source)
    for name in _FILES:
        _check_size(source / name, manifest)
    return _entry(source, manifest)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint whose every byte is as it was written; anything else is a `CheckpointError`."""
    source = Path(path)
    manifest = _read_manifest(source)
    for name in _FILES:
        check_file(source / name, manifest)
    try:
        with safetensors.safe_open(source / TENSOR_FILE, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  # not a mapping
        snapshot = unpack_state(json.loads((source / TREE_FILE).read_text()), tensors)
        if _POLICY in snapshot:
            snapshot[_POLICY] = {**snapshot[_POLICY], "state": read_weights(source / POLICY_FILE)}
        if not all(part.keys() == {"version", "state"} for part in snapshot.values()):
            raise ValueError("its components are not made of a version and a state")
    except (*_MALFORMED, OSError, safetensors.SafetensorError, PolicyError) as error:
        raise CheckpointError(
            f"{str(source)!r} has the announced bytes, but is no checkpoint of metta: {error}"
        ) from error
    return Checkpoint(**vars(_entry(source, manifest)), snapshot=snapshot)


def check_file(path: Path, manifest: Mapping[str, Any] | None = None) -> None:
    """See that a file of a checkpoint is as its manifest announces."""
    manifest = manifest or _read_manifest(path.parent)
    _check_size(path, manifest)
    if sha256_of(path) != manifest["files"][path.name]["sha256"]:
        raise CheckpointError(
            f"{str(path)!r} is damaged: its content is not what was written (sha256 differs)"
        )


def read_newest_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None where there is none at all.

    Damaged ones are passed over with a warning; where all are damaged it is a `CheckpointError`, because
    beginning anew would hide the loss.
    """
    problems: list[str] = []
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(
                f"going back to {path.name!r}, because newer checkpoints cannot be used: "
                + "; ".join(problems),
                MettaWarning,
                stacklevel=2,
            )
        return checkpoint
    if problems:
        raise CheckpointError(
            f"no checkpoint in {str(folder)!r} can be used: {'; '.join(problems)}; begin in another "
            "folder, or restore these files from a copy"
        )
    return None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(f"{str(folder)!r} is no complete checkpoint: it has no {path.name}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        found = manifest["format"], manifest["format_version"]
        if found == (FORMAT, FORMAT_VERSION):
            _require_parts(manifest)
            return manifest
    except (*_MALFORMED, OSError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}") from error
    raise CheckpointError(
        f"{str(folder)!r} has format {found[0]!r} version {found[1]!r}; this version of metta reads "
        f"{FORMAT!r} version {FORMAT_VERSION}"
    )


def _require_parts(manifest: Mapping[str, Any]) -> None:
    if set(manifest["files"]) != set(_FILES):
        raise ValueError(f"it lists the files {sorted(manifest['files'])}, not {sorted(_FILES)}")
    for measured in manifest["files"].values():
        int(measured["size"]), str(measured["sha256"])
    int(manifest["epoch"]), int(manifest["agent_step"])
    if not isinstance(manifest["metadata"], dict):
        raise TypeError("its metadata is not a mapping")


def _check_size(path: Path, manifest: Mapping[str, Any]) -> None:
    expected = manifest["files"][path.name]["size"]
    if not path.is_file():
        raise CheckpointError(f"{str(path)!r} is missing, though the manifest lists it")
    found = path.stat().st_size
    if found != expected:
        raise CheckpointError(f"{str(path)!r} is damaged: {found} bytes instead of {expected}")


def _entry(path: Path, manifest: Mapping[str, Any]) -> CheckpointEntry:
    return CheckpointEntry(
        path.absolute(),
        int(manifest["epoch"]),
        int(manifest["agent_step"]),
        unpack_state(manifest["metadata"], {}),
    )
