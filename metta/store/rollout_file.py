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

__all__ = ["Rollout", "library_versions", "load_rollout", "save_rollout"]

FORMAT = "metta-rollout"
FORMAT_VERSION = 1


class Rollout(dict[str, Tensor]):
    """Columns of a rollout and where they came from; to `torch.save` it is a plain mapping."""

    def __init__(
        self, columns: Mapping[str, Tensor], manifest: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(columns)
        self.manifest: dict[str, Any] = dict(manifest or {})
        """Policy and config hashes, environment, seed, versions; empty where unknown."""

    def __reduce__(self) -> Any:
        return dict, (), None, None, iter(self.items())


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
    tensors = {name: column.detach().cpu().contiguous() for name, column in data.items()}
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
    except safetensors.SafetensorError as error:
        raise RolloutError(
            f"{str(source)!r} is not a rollout file or is damaged ({error}); "
            "rollout files are written by save_rollout. For a dict saved with torch.save use "
            "torch.load(path, weights_only=True) and pass the dict to learn()"
        ) from error
    for name, shape in manifest["columns"].items():
        if name not in columns or list(columns[name].shape) != shape:
            raise RolloutError(f"{str(source)!r} is damaged: column {name!r} is not as announced")
    return Rollout(columns, manifest["source"])


def _manifest(metadata: Mapping[str, str] | None, source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((metadata or {})["manifest"])
        if manifest["format"] != FORMAT:
            raise KeyError("format")
        version = int(manifest["format_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            f"{str(source)!r} is a safetensors file, but not a rollout written by save_rollout"
        ) from error
    if version != FORMAT_VERSION:
        raise RolloutError(
            f"{str(source)!r} has rollout format {version}, this version of metta reads {FORMAT_VERSION}"
        )
    return manifest
