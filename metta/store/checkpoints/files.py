"""One checkpoint is one folder: written under a temporary name, made durable, committed by one rename."""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from metta.agent.policy import Policy
from metta.errors import CheckpointError, MettaWarning, PolicyError, UnsafeFileError
from metta.files import commit_folder, write_durably
from metta.secrets import scrub_all
from metta.state_tree import pack_state, unpack_state
from metta.store.checkpoints.finite_state import FiniteSnapshot, require_finite
from metta.store.checkpoints.listing import VanishedError, listing_anew, reading
from metta.store.checkpoints.manifest import (
    FILES,
    MALFORMED,
    MANIFEST_FILE,
    POLICY_FILE,
    TENSOR_FILE,
    TREE_FILE,
    CheckpointEntry,
    check_file,
    entry_of,
    epoch_in,
    manifest_of,
    new_run_id,
    read_entry,
    read_manifest,
    score_of,
)
from metta.store.policies.file import FrozenPolicy, freeze_policy, read_weights, save_policy
from metta.store.safe_read import check_tensor_file, read_json, read_tensors

__all__ = [
    "MANIFEST_FILE",
    "POLICY_FILE",
    "TENSOR_FILE",
    "TREE_FILE",
    "Checkpoint",
    "CheckpointEntry",
    "check_file",
    "checkpoint_folders",
    "epoch_of",
    "free_path",
    "list_checkpoints",
    "new_run_id",
    "plain_metadata",
    "read_checkpoint",
    "read_entry",
    "read_newest_checkpoint",
    "score_of",
    "survey_checkpoints",
    "verify_checkpoint",
    "write_checkpoint",
]

_POLICY = "policy"
"""The component whose tensors are in the policy file, and nowhere else."""


@dataclass(frozen=True)
class Checkpoint(CheckpointEntry):
    """A checkpoint that was read and verified."""

    snapshot: dict[str, dict[str, Any]] = field(repr=False, kw_only=True)
    """``name -> {"version", "state"}`` for every component, as of `StateRegistry.snapshot`."""

    @property
    def optimizer_state(self) -> dict[str, Any]:
        """State of the component called `optimizer`."""
        state: dict[str, Any] = self.snapshot["optimizer"]["state"]
        return state


def write_checkpoint(
    folder: str | os.PathLike[str],
    snapshot: Mapping[str, Mapping[str, Any]],
    policy: Policy | FrozenPolicy,
    metadata: Mapping[str, Any],
    *,
    run_id: str | None = None,
    log_mark: Mapping[str, Any] | None = None,
) -> Path:
    """Commit a checkpoint to ``folder/epoch_000120`` and return that path.

    `metadata` is plain data with ``epoch`` and ``agent_step``; `run_id` is the id of the run; `log_mark`
    is how far its event log had got. The component called `policy`, if the snapshot has one, is
    the given policy. A checkpoint is never overwritten: a second one of the same epoch becomes
    ``epoch_000120.2`` and supersedes the first. When this returns, the checkpoint is on the disk, and was
    read again. Whatever goes wrong leaves the folder as it was, or at worst with a temporary folder that
    could not be removed. NaN or infinity in what learns is a `NonFiniteError`.
    """
    frozen = policy if isinstance(policy, FrozenPolicy) else freeze_policy(policy)
    root, described = Path(folder), plain_metadata(metadata)
    epoch = int(described["epoch"])
    if not isinstance(snapshot, FiniteSnapshot):
        require_finite({**snapshot, _POLICY: {"state": frozen.tensors}}, epoch)
    packed, extra = _pack(snapshot), {"run_id": run_id, "log_mark": log_mark}
    try:
        return commit_folder(
            lambda: free_path(root, epoch),
            fill=lambda path: _fill(path, packed, frozen, described, extra),
            verify=verify_checkpoint,
            owner=run_id,
        )
    except (OSError, safetensors.SafetensorError, CheckpointError) as error:
        raise CheckpointError(
            f"the checkpoint of epoch {epoch} could not be written to {str(root)!r}: {error}; older "
            "checkpoints are untouched"
        ) from error


def _pack(snapshot: Mapping[str, Mapping[str, Any]]) -> tuple[Any, dict[str, Tensor]]:
    """The state as it is in the files; the policy's tensors have a separate file."""
    return pack_state(
        {
            name: {"version": part["version"]} if name == _POLICY else part
            for name, part in snapshot.items()
        }
    )


def _fill(
    folder: Path,
    packed: tuple[Any, dict[str, Tensor]],
    policy: FrozenPolicy,
    metadata: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> None:
    tree, tensors = packed
    save_policy(folder / POLICY_FILE, policy, metadata)
    write_durably(folder / TENSOR_FILE, lambda path: safetensors.torch.save_file(tensors, path))
    _write_json(folder / TREE_FILE, tree)
    _write_json(folder / MANIFEST_FILE, manifest_of(folder, metadata, **extra))


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as JSON data, without secrets; single numbers of NumPy and torch become Python's."""
    try:
        text = json.dumps(metadata, default=lambda value: value.item())
        plain: dict[str, Any] = scrub_all(json.loads(text))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"metadata must be plain data (numbers, strings, lists, mappings): {error}"
        ) from error
    return plain


def _write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, allow_nan=False)
    write_durably(path, lambda target: target.write_text(text))


def free_path(root: Path, epoch: int) -> Path:
    """Where the next checkpoint of an epoch goes: after all others of it, even if lower names are free."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [path.name for path in root.iterdir()]
    taken = [found[1] for found in map(epoch_in, names) if found is not None and found[0] == epoch]
    number = max(taken, default=0) + 1
    return root / (f"epoch_{epoch:06d}" if number == 1 else f"epoch_{epoch:06d}.{number}")


def checkpoint_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """Folders with the names of checkpoints, oldest first, whatever they hold.

    A folder that cannot be listed is an OSError: it may still hold checkpoints.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                named = epoch_in(entry.name)
                if named is not None and entry.is_dir():
                    found.append((named, Path(entry.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for _, path in sorted(found)]


def epoch_of(path: Path) -> int:
    """The epoch in the name of a checkpoint's folder; ValueError for other names."""
    named = epoch_in(path.name)
    if named is None:
        raise ValueError(f"{path.name!r} is not a name of a checkpoint")
    return named[0]


def list_checkpoints(folder: str | os.PathLike[str]) -> list[CheckpointEntry]:
    """Complete checkpoints, oldest first; of contents only the sizes are compared."""
    return survey_checkpoints(folder)[0]


def survey_checkpoints(
    folder: str | os.PathLike[str],
) -> tuple[list[CheckpointEntry], list[Path]]:
    """Complete checkpoints, oldest first, and the folders of those that cannot be read.

    The folder is listed again if a trainer removes one meanwhile.
    """
    return listing_anew(lambda: _survey(folder))


def _survey(folder: str | os.PathLike[str]) -> tuple[list[CheckpointEntry], list[Path]]:
    entries, unreadable = [], []
    for path in checkpoint_folders(folder):
        try:
            with reading(path):
                entries.append(read_entry(path))
        except VanishedError:
            raise
        except CheckpointError:
            unreadable.append(path)
    return entries, unreadable


def verify_checkpoint(path: str | os.PathLike[str]) -> CheckpointEntry:
    """Check that every byte is as it was written, and that the files are of the kind that is read here.

    Anything else is a `CheckpointError`. Tensors are not loaded.
    """
    entry, source = _verify_bytes(path), Path(path)
    with _as_checkpoint_errors(source):
        check_tensor_file(source / POLICY_FILE)
        check_tensor_file(source / TENSOR_FILE)
        read_json(source / TREE_FILE)
    return entry


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint whose every byte is as it was written; anything else is a `CheckpointError`."""
    entry, source = _verify_bytes(path), Path(path)
    with _as_checkpoint_errors(source):
        tensors, _ = read_tensors(source / TENSOR_FILE)
        snapshot = unpack_state(read_json(source / TREE_FILE), tensors)
        if _POLICY in snapshot:
            snapshot[_POLICY] = {**snapshot[_POLICY], "state": read_weights(source / POLICY_FILE)}
        if not all(part.keys() == {"version", "state"} for part in snapshot.values()):
            raise ValueError("its components are not made of a version and a state")
    return Checkpoint(**vars(entry), snapshot=snapshot)


def _verify_bytes(path: str | os.PathLike[str]) -> CheckpointEntry:
    source = Path(path)
    manifest = read_manifest(source)
    for name in FILES:
        check_file(source / name, manifest)
    return entry_of(source, manifest)


@contextlib.contextmanager
def _as_checkpoint_errors(source: Path) -> Iterator[None]:
    try:
        yield
    except (*MALFORMED, OSError, UnsafeFileError, PolicyError) as error:
        raise CheckpointError(
            f"{str(source)!r} has the announced bytes, but is not a checkpoint of metta: {error}"
        ) from error


def read_newest_checkpoint(
    folder: str | os.PathLike[str], *, run_id: str | None = None
) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None if the folder has none at all.

    Damaged ones, and with a `run_id` those of other runs, are skipped with a warning; if none is left it
    is a `CheckpointError`, because starting from the beginning would hide the loss.
    """
    return listing_anew(lambda: _read_newest(folder, run_id))


def _read_newest(folder: str | os.PathLike[str], run_id: str | None) -> Checkpoint | None:
    problems: list[str] = []
    try:
        folders = checkpoint_folders(folder)
    except OSError as error:
        raise CheckpointError(
            f"{str(folder)!r} cannot be searched for checkpoints: {error}"
        ) from error
    for path in reversed(folders):
        try:
            with reading(path):
                checkpoint = read_checkpoint(path)
            _require_run(checkpoint, run_id)
        except VanishedError:
            raise
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(
                f"going back to {path.name!r}, because newer checkpoints cannot be used: "
                + "; ".join(problems),
                MettaWarning,
                stacklevel=4,
            )
        return checkpoint
    if problems:
        raise CheckpointError(
            f"no checkpoint in {str(folder)!r} can be used: {'; '.join(problems)}; begin in another "
            "folder, or restore these files from a copy"
        )
    return None


def _require_run(checkpoint: Checkpoint, run_id: str | None) -> None:
    if None not in (run_id, checkpoint.run_id) and checkpoint.run_id != run_id:
        raise CheckpointError(f"{str(checkpoint.path)!r} was written by another run")
