"""Observation spaces as a flat list of named leaves: the one place where nesting is undone.

`Dict` and `Tuple` spaces, however deep, become leaves with keys such as ``"camera/rgb"`` or ``"1"``; a
plain space is one leaf named ``"obs"``. Environments write leaves, policies read leaves, and users'
modules get the original nesting back through `ObsSpec.nest`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from metta.errors import SpaceError

__all__ = ["MASK_KEY", "MIN_IMAGE_PIXELS", "ObsLeaf", "ObsSpec", "obs_spec_of", "without_texts"]

MASK_KEY = "action_mask"
"""Observation key or info key under which an environment announces its legal actions."""

MIN_IMAGE_PIXELS = 36
"""Smaller grids are too small to be photographs or screens, and for the strides of NatureCNN."""

PLAIN_KEY = "obs"

LeafKind = Literal["box", "discrete", "binary"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ObsLeaf:
    """One array of an observation: its place in the nesting, its shape and its stored dtype."""

    key: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: LeafKind
    categories: tuple[int, ...] = ()
    """Number of values of each element, for ``kind="discrete"``."""
    starts: tuple[int, ...] = ()
    """Smallest value of each element, for ``kind="discrete"``."""

    def value_in(self, observation: Any) -> Any:
        """This leaf's part of a nested observation."""
        value = observation
        try:
            for step in self.path:
                value = value[step]
        except (KeyError, IndexError, TypeError):
            raise SpaceError(
                f"the observation has no entry {self.key!r}, which its space promises (found a "
                f"{type(observation).__name__}); return what observation_space describes"
            ) from None
        return value

    def fit(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        """`value` as an array ``[*shape]`` that this leaf can store without loss.

        Any number may become a float; integers and pixels must keep their values.
        """
        array = np.asarray(value)
        if array.shape != shape:
            raise SpaceError(
                f"observation {self.key!r} has shape {array.shape} but its space promises {shape}; "
                "fix the environment's observation_space or what step() and reset() return"
            )
        if array.dtype.kind in "biuf":
            if self.dtype.kind == "f" or array.dtype == self.dtype:
                return array
            with np.errstate(invalid="ignore"):
                stored = array.astype(self.dtype)
            if np.array_equal(stored, array):
                return stored
        raise SpaceError(
            f"observation {self.key!r} has dtype {array.dtype}, which does not fit the {self.dtype} "
            "that its space promises without changing values; fix the environment's "
            "observation_space or convert the observation"
        )

    def draw(
        self, generator: np.random.Generator, *lead: int, largest_integer: int = 1
    ) -> np.ndarray:
        """Random numbers ``[*lead, *shape]`` of this leaf's kind.

        Integers that count no categories are in ``0..largest_integer``, at most 255.
        """
        shape = (*lead, *self.shape)
        values: np.ndarray
        if self.kind == "discrete":
            starts, categories = (
                np.reshape(numbers, self.shape) for numbers in (self.starts, self.categories)
            )
            values = generator.integers(starts, starts + categories, shape)
        elif self.dtype.kind == "f":
            values = generator.standard_normal(shape, np.float32)
        else:
            is_bit = self.kind == "binary" or self.dtype.kind == "b"
            largest = 1 if is_bit else min(largest_integer, np.iinfo(self.dtype).max)
            values = generator.integers(0, largest, shape, np.uint8, endpoint=True)
        return values.astype(self.dtype, copy=False)

    @property
    def is_image(self) -> bool:
        """Whether this leaf is a stack of uint8 pixel planes."""
        return self.kind == "box" and self.dtype == np.uint8 and len(self.shape) == 3

    @property
    def is_grid(self) -> bool:
        """Whether this leaf has two spatial dimensions and channels."""
        return self.kind == "box" and len(self.shape) == 3

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class ObsSpec:
    """The leaves of an observation space, in a fixed order, and where its action mask is."""

    leaves: tuple[ObsLeaf, ...]
    mask_path: Path | None = None
    """Path of the action mask inside the observation; it is not a leaf."""
    texts: tuple[str, ...] = field(default=(), compare=False)
    """Keys of entries of a `Dict` that are texts, which are left out."""

    @property
    def is_plain(self) -> bool:
        """Whether the space is a single array, not a `Dict` or `Tuple`."""
        return len(self.leaves) == 1 and self.leaves[0].path == ()

    @property
    def nbytes(self) -> int:
        """Bytes of one row of all leaves."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def zeros(self, *lead: int) -> dict[str, np.ndarray]:
        """Zeroed arrays ``[*lead, *leaf.shape]``, one per leaf."""
        return {leaf.key: np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in self.leaves}

    def write(self, observation: Any, out: Mapping[str, np.ndarray], row: int | slice) -> None:
        """Copy one observation (or a batch of them, with a slice) into `out` at `row`."""
        for leaf in self.leaves:
            value = leaf.value_in(observation)
            target = out[leaf.key]
            expected = leaf.shape if isinstance(row, int) else target[row].shape
            if type(value) is np.ndarray and value.shape == expected and value.dtype == leaf.dtype:
                target[row] = value
            else:
                target[row] = leaf.fit(value, expected)

    def mask_of(self, observation: Any) -> Any:
        """The action mask inside an observation (only if `mask_path` is set)."""
        for step in self.mask_path or ():
            observation = observation[step]
        return observation

    def split(self, nested: Any) -> dict[str, Any]:
        """The leaves of an observation in the nesting of its space: the reverse of `nest`."""
        return {leaf.key: leaf.value_in(nested) for leaf in self.leaves}

    def nest(self, leaves: Mapping[str, Any]) -> Any:
        """Give leaves back the nesting of the space: a plain value, or dicts (tuples by index)."""
        if self.is_plain:
            return leaves[self.leaves[0].key]
        root: dict[str | int, Any] = {}
        for leaf in self.leaves:
            node = root
            for step in leaf.path[:-1]:
                node = node.setdefault(step, {})
            node[leaf.path[-1]] = leaves[leaf.key]
        return _tuples(root)

    def describe(self) -> list[dict[str, object]]:
        """Keys, shapes and dtypes as plain data, for manifests and messages."""
        return [
            {
                "key": leaf.key,
                "shape": list(leaf.shape),
                "dtype": str(leaf.dtype),
                "kind": leaf.kind,
                "categories": list(leaf.categories),
            }
            for leaf in self.leaves
        ]


def obs_spec_of(space: spaces.Space[Any]) -> ObsSpec:
    """Flatten an observation space; ``action_mask`` and texts inside a `Dict` are set apart."""
    leaves: list[ObsLeaf] = []
    mask_paths: list[Path] = []
    texts: list[str] = []

    def visit(node: spaces.Space[Any], path: Path) -> None:
        if isinstance(node, spaces.Dict):
            for key, child in node.spaces.items():
                _require_string(key, node)
                if key == MASK_KEY:
                    mask_paths.append((*path, key))
                elif _is_text(child):
                    texts.append("/".join(map(str, (*path, key))))
                else:
                    visit(child, (*path, key))
        elif isinstance(node, spaces.Tuple):
            for position, child in enumerate(node.spaces):
                visit(child, (*path, position))
        else:
            leaves.append(_leaf_of(node, path))

    visit(space, ())
    if not leaves:
        raise SpaceError(f"observation space {space} holds nothing a policy could see")
    if len({leaf.key for leaf in leaves}) < len(leaves) or len(mask_paths) > 1:
        raise SpaceError(
            f"observation space {space} has two entries of one name ({MASK_KEY!r} counts everywhere, and "
            "'a/b' is also b inside a); rename one of them"
        )
    return ObsSpec(tuple(leaves), mask_paths[0] if mask_paths else None, tuple(texts))


def without_texts(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space without the texts inside its `Dict`s: what a policy is made for."""
    if isinstance(space, spaces.Tuple):
        parts = [without_texts(part) for part in space.spaces]
        return spaces.Tuple(parts) if parts != list(space.spaces) else space
    if not isinstance(space, spaces.Dict):
        return space
    kept = [(k, without_texts(part)) for k, part in space.spaces.items() if not _is_text(part)]
    # pairs, not a mapping: gymnasium would sort it
    return spaces.Dict(kept) if kept != list(space.spaces.items()) else space


def _require_string(key: Any, space: spaces.Space[Any]) -> None:
    if not isinstance(key, str):
        raise SpaceError(f"key {key!r} of {space} is not a string; rename it")


def _is_text(space: spaces.Space[Any]) -> bool:
    return space.dtype is not None and space.dtype.kind == "U"


def _leaf_of(space: spaces.Space[Any], path: Path) -> ObsLeaf:
    key = "/".join(str(step) for step in path) or PLAIN_KEY
    builder = next((make for kind, make in _LEAF_BUILDERS.items() if isinstance(space, kind)), None)
    if builder is None:
        raise SpaceError(
            f"observation {key!r} is a {type(space).__name__} space, which metta does not read; "
            "supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them; texts "
            "inside a Dict are left out (convert it with a gymnasium observation wrapper)"
        )
    return builder(space, key, path)


def _box_leaf(space: Any, key: str, path: Path) -> ObsLeaf:
    # every float width is stored as float32; integers keep theirs (uint8 pixels stay uint8)
    dtype = np.dtype(np.float32) if space.dtype.kind == "f" else np.dtype(space.dtype)
    return ObsLeaf(key, path, tuple(space.shape), dtype, "box")


def _discrete_leaf(space: Any, key: str, path: Path) -> ObsLeaf:
    return ObsLeaf(
        key, path, (), np.dtype(np.int64), "discrete", (int(space.n),), (int(space.start),)
    )


def _multi_discrete_leaf(space: Any, key: str, path: Path) -> ObsLeaf:
    categories = tuple(int(n) for n in space.nvec.ravel())
    starts = tuple(int(s) for s in np.broadcast_to(space.start, space.nvec.shape).ravel())
    # bytes stay bytes, an eighth of the memory; modules get int64 whatever is stored
    dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.int64)
    return ObsLeaf(key, path, tuple(space.shape), dtype, "discrete", categories, starts)


def _binary_leaf(space: Any, key: str, path: Path) -> ObsLeaf:
    return ObsLeaf(key, path, tuple(space.shape), np.dtype(np.int8), "binary")


_LEAF_BUILDERS: dict[type, Callable[[Any, str, Path], ObsLeaf]] = {
    spaces.Box: _box_leaf,
    spaces.Discrete: _discrete_leaf,
    spaces.MultiDiscrete: _multi_discrete_leaf,
    spaces.MultiBinary: _binary_leaf,
}


def _tuples(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    children = {key: _tuples(child) for key, child in node.items()}
    if all(isinstance(key, int) for key in children):
        return tuple(children[key] for key in sorted(children))
    return children
