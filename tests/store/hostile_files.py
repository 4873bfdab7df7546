"""Files that nobody means well with, made by hand."""

import json
from pathlib import Path
from typing import Any


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def tensor_bytes(header: Any, data: bytes = bytes(24), length: int | None = None) -> bytes:
    """A safetensors file of a header, which may be text, and data; `length` is what it announces."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def write_tensors(path: Path, header: Any, data: bytes = bytes(24), **more: Any) -> Path:
    path.write_bytes(tensor_bytes(header, data, **more))
    return path
