"""JSON that every reader accepts: NaN becomes null, and secrets are hidden."""

import json
import math
from collections.abc import Mapping
from typing import Any

from metta.secrets import scrub, scrub_all

__all__ = ["to_json"]

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """One line of JSON, whatever is in `value`: objects that JSON does not have become text."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError):
        text = _ENCODER.encode(_plain(value))
    if scrub(text) == text:  # nearly always, and one search of the whole line is quick
        return text
    return _ENCODER.encode(scrub_all(_plain(value)))


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
