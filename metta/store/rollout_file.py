"""Rollout files: safetensors columns with a JSON manifest, memory-mapped when they are read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from metta.errors import RolloutError, UnsafeFileError
from metta.rollout import Rollout
from metta.store.content_digest import CONTENT_KEY, save_with_manifest, verify_content
from metta.store.safe_read import TensorFile, open_tensors, refuse_false_booleans
from metta.untrusted.json_files import brief, parse_json

__all__ = ["Rollout", "load_rollout", "save_rollout"]

FORMAT = "metta-rollout"
FORMAT_VERSION = 1
_PARTS = {"format", "format_version", "columns", "source"}


def save_rollout(path: str | os.PathLike[str], data: Mapping[str, Tensor]) -> Path:
    """Write a rollout atomically; a crash leaves the old file or the new one.

    The manifest (policy and config hashes, environment, seed, versions) is the one that
    `PPOTrainer.collect_rollouts` attached; your own columns are saved without one.

        save_rollout("experience.safetensors", trainer.collect_rollouts(128))
    """
    if not data:
        raise RolloutError("save_rollout got a rollout without columns")
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "columns": {name: list(column.shape) for name, column in data.items()},
        "source": getattr(data, "manifest", {}),
    }
    try:
        return save_with_manifest(path, _own_memory(data), manifest)
    except ValueError as error:
        raise RolloutError(f"the rollout cannot be saved as {str(path)!r}: {error}") from error


def load_rollout(path: str | os.PathLike[str]) -> Rollout:
    """A rollout from a file; its tensors are memory-mapped and loaded when they are used.

    The file is read once, block by block, to check that it is as it was written.
    """
    source = Path(path)
    if not source.is_file():
        raise RolloutError(f"there is no rollout file {str(source)!r}")
    try:
        with open_tensors(source) as found:
            manifest = _manifest(found.announced.metadata, source)
            _require_columns(found.announced, manifest["columns"], source)
            verify_content(found, manifest)
        with safetensors.safe_open(source, framework="pt") as opened:
            columns = {name: opened.get_tensor(name) for name in found.announced.places}
        refuse_false_booleans(source, columns)
    except (OSError, UnsafeFileError, safetensors.SafetensorError) as error:
        raise RolloutError(
            f"{str(source)!r} is not a rollout file or is damaged; rollout files are written by "
            f"save_rollout: {error}"
        ) from error
    return Rollout(columns, manifest["source"])


def _require_columns(found: TensorFile, announced: Mapping[str, Any], source: Path) -> None:
    shapes = {name: list(place.shape) for name, place in found.places.items()}
    if shapes != announced:
        names = sorted(
            name
            for name in shapes.keys() | announced.keys()
            if shapes.get(name) != announced.get(name)
        )
        raise RolloutError(
            f"{str(source)!r} is damaged: columns {brief(names)} are not as announced"
        )


def _own_memory(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous columns on the host, no two of which share memory: the format has no aliases."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, column in data.items():
        tensor = column.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return tensors


def _manifest(metadata: Mapping[str, str], source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = parse_json(metadata["manifest"], allow_nan=True)
        version = int(manifest["format_version"])
        known = manifest["format"] == FORMAT
        # another version may hold something else
        if version == FORMAT_VERSION:
            known = known and manifest.keys() - {CONTENT_KEY} == _PARTS
            known = known and all(isinstance(manifest[key], dict) for key in ("columns", "source"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RolloutError(_not_ours(source)) from error
    if not known:
        raise RolloutError(_not_ours(source))
    if version != FORMAT_VERSION:
        raise RolloutError(
            f"{str(source)!r} has rollout format {version}, this version of metta reads "
            f"{FORMAT_VERSION}; read it with the version that wrote it, or collect it again"
        )
    return manifest


def _not_ours(source: Path) -> str:
    return f"{str(source)!r} is a safetensors file, but not a rollout written by save_rollout"
