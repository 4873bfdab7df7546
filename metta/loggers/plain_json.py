"""JSON that every reader accepts: NaN and infinity become null."""

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["to_json"]

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """One line of JSON, whatever is in `value`: strange objects become text."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):
        return _ENCODER.encode(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
