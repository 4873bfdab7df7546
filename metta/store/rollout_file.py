"""Rollout files: safetensors columns with a JSON manifest, memory-mapped when they are read."""

import functools
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from metta.errors import RolloutError
from metta.files import atomic_write
from metta.rollout import Rollout

__all__ = ["Rollout", "library_versions", "load_rollout", "save_rollout"]

FORMAT = "metta-rollout"
FORMAT_VERSION = 1


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions that decide the bits of a run."""
    packages = ("metta-rl", "torch", "numpy", "gymnasium")
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in packages
    }


def save_rollout(path: str | os.PathLike[str], data: Mapping[str, Tensor]) -> Path:
    """Write a rollout atomically; a crash leaves the old file or the new one.

    The manifest (policy and config hashes, environment, seed, versions) is the one that
    `PPOTrainer.collect_rollouts` attached; columns of one's own making are saved without one.

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
    tensors = _own_memory(data)
    metadata = {"manifest": json.dumps(manifest)}
    return atomic_write(
        path, lambda target: safetensors.torch.save_file(tensors, target, metadata=metadata)
    )


def load_rollout(path: str | os.PathLike[str]) -> Rollout:
    """A rollout from a file, its tensors mapped from disk and read when they are used."""
    source = Path(path)
    if not source.is_file():
        raise RolloutError(f"there is no rollout file {str(source)!r}")
    try:
        with safetensors.safe_open(source, framework="pt") as opened:
            manifest = _manifest(opened.metadata(), source)
            columns = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise RolloutError(
            f"{str(source)!r} is not a rollout file or is damaged ({error}); "
            "rollout files are written by save_rollout. For a dict saved with torch.save use "
            "torch.load(path, weights_only=True) and pass the dict to learn()"
        ) from error
    found = {name: list(column.shape) for name, column in columns.items()}
    if found != manifest["columns"]:
        names = sorted(
            name
            for name in found.keys() | manifest["columns"].keys()
            if found.get(name) != manifest["columns"].get(name)
        )
        raise RolloutError(f"{str(source)!r} is damaged: columns {names} are not as announced")
    return Rollout(columns, manifest["source"])


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


def _manifest(metadata: Mapping[str, str] | None, source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((metadata or {})["manifest"])
        version = int(manifest["format_version"])
        known = manifest["format"] == FORMAT
        # another version may hold something else
        if version == FORMAT_VERSION:
            known = known and all(isinstance(manifest[key], dict) for key in ("columns", "source"))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
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
