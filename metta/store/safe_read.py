"""Tensors of untrusted files: headers are checked before memory is allocated, and no code is run."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

import psutil
import torch
from torch import Tensor

from metta.errors import UnsafeFileError
from metta.untrusted.files import open_regular, refuse_code, sha256_in
from metta.untrusted.json_files import brief, parse_json, read_json

__all__ = [
    "DTYPES",
    "OpenTensors",
    "TensorFile",
    "TensorPlace",
    "check_tensor_file",
    "open_tensors",
    "read_json",
    "read_tensors",
    "refuse_false_booleans",
]

MAX_HEADER_BYTES = 8 * 2**20
MAX_TENSORS = 20_000
MAX_DIMENSIONS = 32
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
"""Types of tensors that are read and written, by their names in the format."""
_METADATA = "__metadata__"


class TensorPlace(NamedTuple):
    """Type and shape of a tensor, and where it is in its file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorFile:
    """What the header of a safetensors file announces, after it was checked."""

    metadata: dict[str, str]
    places: dict[str, TensorPlace]

    @property
    def data_bytes(self) -> int:
        """Memory that all tensors take."""
        return sum(place.end - place.begin for place in self.places.values())


@dataclass(frozen=True)
class OpenTensors:
    """A safetensors file that is held open: all reads are from the same file, even if it is removed."""

    path: str
    announced: TensorFile
    size: int
    stream: BufferedReader

    def sha256(self) -> str:
        """Hex digest of the whole file."""
        return sha256_in(self.stream)

    def load(self) -> dict[str, Tensor]:
        """Copies of all tensors."""
        available = psutil.virtual_memory().available
        if self.announced.data_bytes > available:
            raise UnsafeFileError(
                f"{self.path!r} announces {self.announced.data_bytes} bytes of tensors, but only "
                f"{available} bytes of memory are free here"
            )
        try:
            places = self.announced.places.items()
            tensors = {name: _read_tensor(self.stream, place) for name, place in places}
        except (OSError, RuntimeError) as error:  # RuntimeError: no memory
            raise UnsafeFileError(f"{self.path!r} cannot be read: {error}") from error
        refuse_false_booleans(self.path, tensors)
        return tensors


def _read_tensor(stream: BufferedReader, place: TensorPlace) -> Tensor:
    tensor = torch.empty(place.shape, dtype=DTYPES[place.dtype])
    if place.end > place.begin:
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        stream.seek(place.begin)
        while content:
            count = stream.readinto(content)
            if not count:
                raise OSError("it became shorter while it was read")
            content = content[count:]
    return tensor


@contextmanager
def open_tensors(
    path: str | os.PathLike[str], *, follow_symlink: bool = True
) -> Iterator[OpenTensors]:
    """Open a safetensors file after checking its header; nothing is allocated for its tensors.

    The header must be within the limits, and its tensors must be of known types and lie end to end.
    """
    with open_regular(path, follow_symlink=follow_symlink) as (stream, size):
        refuse_code(path, stream, size)
        try:
            header, first = _read_header(stream, size)
            announced = _checked(header, first, size)
        except ValueError as error:
            raise UnsafeFileError(
                f"{os.fspath(path)!r} is not a safetensors file, or is damaged: {error}"
            ) from error
        yield OpenTensors(os.fspath(path), announced, size, stream)


def check_tensor_file(path: str | os.PathLike[str], *, follow_symlink: bool = True) -> TensorFile:
    """Check the header of a safetensors file; see `open_tensors`."""
    with open_tensors(path, follow_symlink=follow_symlink) as opened:
        return opened.announced


def read_tensors(
    path: str | os.PathLike[str], *, follow_symlink: bool = True
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Copies of the tensors of a checked safetensors file, and its metadata."""
    with open_tensors(path, follow_symlink=follow_symlink) as opened:
        return opened.load(), opened.announced.metadata


def refuse_false_booleans(path: str | os.PathLike[str], tensors: dict[str, Tensor]) -> None:
    """Booleans are 0 or 1: torch computes nonsense with other bytes under that name."""
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise UnsafeFileError(
                f"{os.fspath(path)!r} is damaged: {brief(name)} holds bytes that are not booleans"
            )


def _read_header(stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header should have {length} bytes, the whole file has {size}")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, more than {MAX_HEADER_BYTES}")
    header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header, 8 + length


def _checked(header: dict[str, Any], first: int, size: int) -> TensorFile:
    """Tensors of a header whose data lies between `first` and `size`."""
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata is not a mapping of texts")
    if len(header) > MAX_TENSORS:
        raise ValueError(f"it announces {len(header)} tensors, more than {MAX_TENSORS}")
    places = {name: _place(name, entry, first) for name, entry in header.items()}
    reached = first
    for begin, end in sorted((place.begin, place.end) for place in places.values()):
        if begin != reached:
            raise ValueError(f"tensors overlap or leave a gap at byte {reached}")
        reached = end
    if reached != size:
        raise ValueError(f"its tensors end at byte {reached}, the file at {size}")
    return TensorFile(metadata, places)


def _place(name: str, entry: Any, first: int) -> TensorPlace:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{brief(name)} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(
            f"{brief(name)} has the type {brief(dtype)}; known are {', '.join(DTYPES)}"
        )
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{brief(name)} has no shape of up to {MAX_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{brief(name)} does not lie between two offsets")
    begin, end = offsets
    # a size of 0 must not hide others that overflow
    if math.prod(max(size, 1) for size in shape) >= 2**60:
        raise ValueError(f"{brief(name)} has the impossible shape {shape}")
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{brief(name)} does not fill bytes {begin} to {end} with {dtype} {shape}")
    return TensorPlace(dtype, tuple(shape), first + begin, first + end)


def _are_sizes(found: Any) -> bool:
    return isinstance(found, list) and all(
        type(size) is int and 0 <= size < 2**60 for size in found
    )
