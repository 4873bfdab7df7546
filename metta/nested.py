"""Nested data: the leaves of mappings, lists and tuples."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["leaves", "map_leaves"]


Path = tuple[Any, ...]
"""Keys and positions that lead to a leaf."""


def leaves(
    data: Any, *, max_depth: int | None = None, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Every leaf in order, with its path; what lies `max_depth` deep counts as a leaf."""
    if isinstance(data, Mapping | list | tuple) and len(path) != max_depth:
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        for key, item in items:
            yield from leaves(item, max_depth=max_depth, path=(*path, key))
    else:
        yield path, data


def map_leaves(data: Any, function: Callable[[Any], Any]) -> Any:
    """The same data with `function` of every leaf; mappings become dicts."""
    if isinstance(data, Mapping):
        return {key: map_leaves(item, function) for key, item in data.items()}
    if isinstance(data, list | tuple):
        items = [map_leaves(item, function) for item in data]
        return items if isinstance(data, list) else tuple(items)
    return function(data)
