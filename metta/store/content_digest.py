"""Tensor files with a manifest, and one digest over their content.

That is the manifest, and each tensor's name, type, shape and bytes.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor

from metta.errors import UnsafeFileError
from metta.files import atomic_write
from metta.store.safe_read import DTYPES, OpenTensors, TensorPlace
from metta.untrusted.json_files import parse_json

__all__ = ["CONTENT_KEY", "save_with_manifest", "sha256_of_tensors", "verify_content"]

CONTENT_KEY = "content_sha256"
"""Where a manifest keeps the digest."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BLOCK = 2**20


def save_with_manifest(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], manifest: Mapping[str, Any]
) -> Path:
    """Write tensors and a manifest with their digest atomically; ValueError if they cannot be saved."""
    about = parse_json(json.dumps(manifest), allow_nan=True)  # the digest covers what will be read
    about[CONTENT_KEY] = sha256_of_tensors(about, tensors)
    metadata = {"manifest": json.dumps(about)}
    return atomic_write(
        path, lambda target: safetensors.torch.save_file(tensors, target, metadata=metadata)
    )


def sha256_of_tensors(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of contiguous tensors on the host; ValueError if one has a type that cannot be saved."""
    digest = hashlib.sha256(_canonical(manifest))
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name!r} has the type {tensor.dtype}, which cannot be saved")
        digest.update(_canonical([name, _NAMES[tensor.dtype], list(tensor.shape)]))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def verify_content(opened: OpenTensors, manifest: Mapping[str, Any]) -> None:
    """`UnsafeFileError` if a file's bytes are not those its manifest was written with.

    The file is read block by block, not into memory. Files of old versions have no digest to compare.
    """
    if CONTENT_KEY not in manifest:
        return
    digest = hashlib.sha256(_canonical(manifest))
    for name, place in sorted(opened.announced.places.items()):
        digest.update(_canonical([name, place.dtype, list(place.shape)]))
        for block in _blocks(opened.stream, place):
            digest.update(block)
    if manifest[CONTENT_KEY] != digest.hexdigest():
        raise UnsafeFileError(
            f"{opened.path!r} is damaged: its content is not what was written (sha256 differs)"
        )


def _canonical(data: Any) -> bytes:
    if isinstance(data, Mapping):
        data = {key: value for key, value in data.items() if key != CONTENT_KEY}
    return json.dumps(data, sort_keys=True).encode() + b"\n"


def _blocks(stream: BinaryIO, place: TensorPlace) -> Iterator[bytes]:
    stream.seek(place.begin)
    left = place.end - place.begin
    while left > 0:
        block = stream.read(min(left, _BLOCK))
        if not block:
            raise OSError("it became shorter while it was read")
        left -= len(block)
        yield block
