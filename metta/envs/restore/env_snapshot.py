"""The state of a Gymnasium environment and its wrappers as plain data.

A layer that has both `get_state()` and `set_state(state)` speaks for itself; of every other object the
attributes are read. Nothing is pickled or copied deeply. A state neither holds code nor names any: it is
made of None, booleans, numbers, strings, lists, mappings with string keys, and arrays.
"""

import enum
from collections import deque
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from metta.envs.restore.env_values import (
    UnreadableStateError,
    array_node,
    has_only_attributes,
    has_own_state,
    is_constant,
    may_be_address,
    name_of_constant,
    name_of_type,
    owner_of,
    parts_of_space,
    path_inside,
    scalar_node,
    unreadable,
)
from metta.envs.restore.generator_state import GENERATOR_TYPES, generator_state, is_global_generator
from metta.envs.rows.row_spec import GymEnv
from metta.secrets import scrub

__all__ = ["snapshot_env"]


def snapshot_env(env: GymEnv | VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    """Where the environment stands, in memory of its own.

    `UnreadableStateError` names an attribute whose state cannot be read (an object of a C library) or
    not be given back faithfully (two arrays that overlap).
    """
    walk = _Snapshot()
    try:
        tree: dict[str, Any] = walk.node(env, "")
    except RecursionError as error:
        raise UnreadableStateError("its attributes are nested too deeply to be read") from error
    walk.refuse_overlaps()
    return tree


class _Snapshot:
    """One walk over an environment: a node for each value, a reference for what was met before."""

    def __init__(self) -> None:
        self._met: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []
        """All that was met: as long as it lives, nothing else can have its id."""
        self._arrays: list[tuple[str, np.ndarray]] = []
        self._num_shared = 0

    def node(self, value: Any, path: str) -> Any:
        """`value` as plain data; `path` is how one would write it in Python."""
        if type(value) is str and scrub(value) != value:
            raise unreadable(path, "text with a secret in it, which must not be saved")
        if value is None or type(value) in (bool, float, str):
            return value
        if type(value) is int:
            if may_be_address(value):
                raise unreadable(path, "integer that may be an address in memory")
            return value
        if isinstance(value, enum.Enum):
            return {"kind": "enum", "type": name_of_type(value), "name": value.name}
        if isinstance(value, EnvSpec):
            return {"kind": "spec"}
        if is_constant(value):
            return {"kind": "constant", "name": name_of_constant(value)}
        if type(value) in (tuple, frozenset):
            return self._sequence(value, path)
        if isinstance(value, np.generic):
            return scalar_node(value, path)
        return self._mutable(value, path)

    def refuse_overlaps(self) -> None:
        """Two views of one memory would come back as two memories, and drift apart."""
        by_owner: dict[int, list[tuple[str, np.ndarray]]] = {}
        for path, array in self._arrays:
            neighbours = by_owner.setdefault(id(owner_of(array)), [])
            for other, seen in neighbours:
                if np.may_share_memory(array, seen):
                    raise UnreadableStateError(
                        f"attributes {other!r} and {path!r} share memory, and would come back apart"
                    )
            neighbours.append((path, array))

    def _mutable(self, value: Any, path: str) -> dict[str, Any]:
        known = self._met.get(id(value))
        if known is not None:
            if "id" not in known:
                known["id"] = self._num_shared
                self._num_shared += 1
            return {"kind": "same", "id": known["id"]}
        node: dict[str, Any] = {}
        self._met[id(value)] = node
        self._kept.append(value)
        node.update(self._described(value, path))
        return node

    def _described(self, value: Any, path: str) -> dict[str, Any]:
        if type(value) is np.ndarray:
            self._arrays.append((path, value))
            return array_node(value, path)
        if type(value) is dict:
            return self._mapping(value, path)
        if type(value) in (list, set, deque):
            return self._sequence(value, path)
        if isinstance(value, GENERATOR_TYPES):
            return self._generator(value, path)
        if isinstance(value, spaces.Space):
            return self._space(value, path)
        if has_own_state(value):
            return self._own_state(value, path)
        return self._object(value, path)

    def _sequence(self, value: Any, path: str) -> dict[str, Any]:
        node: dict[str, Any] = {"kind": name_of_type(value)}
        if type(value) is deque:
            node["maxlen"] = value.maxlen
        items: Iterable[Any] = value
        if isinstance(value, (set, frozenset)):
            # members are plain, and their order must not depend on how they were added
            items = sorted(value, key=lambda item: (name_of_type(item), repr(item)))
        return node | {"items": [self.node(item, f"{path}[{i}]") for i, item in enumerate(items)]}

    def _mapping(self, value: dict[Any, Any], path: str) -> dict[str, Any]:
        items = [
            [self.node(key, f"{path} key"), self.node(item, f"{path}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"kind": "dict", "items": items}

    def _generator(self, value: Any, path: str) -> dict[str, Any]:
        if is_global_generator(value):
            raise unreadable(path, "generator that the whole process shares")
        bits = getattr(value, "bit_generator", None)
        if bits is not None:
            if id(bits) in self._met:
                raise unreadable(path, "generator that shares its bits with another one")
            self._met[id(bits)] = {}
            self._kept.append(bits)
        state = generator_state(value)
        if state is None:
            raise unreadable(path, name_of_type(value))
        return {"kind": "generator", "state": state}

    def _space(self, value: spaces.Space[Any], path: str) -> dict[str, Any]:
        generator = vars(value).get("_np_random")
        return {
            "kind": "space",
            "type": name_of_type(value),
            "generator": self.node(generator, f"{path}.np_random"),
            "parts": [self.node(part, path) for part in parts_of_space(value)],
        }

    def _own_state(self, value: Any, path: str) -> dict[str, Any]:
        try:
            state = value.get_state()
        except Exception as error:
            raise UnreadableStateError(
                f"{name_of_type(value)}.get_state() failed: {type(error).__name__}: {error}"
            ) from error
        self._kept.append(state)
        node = {
            "kind": "own",
            "type": name_of_type(value),
            "state": self.node(state, f"{path}.get_state()".lstrip(".")),
        }
        if isinstance(value, (gymnasium.Wrapper, VectorWrapper)):
            node["env"] = self.node(value.env, path)
        return node

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        if not has_only_attributes(value):
            raise unreadable(path, name_of_type(value))
        if "this" in vars(value) and not has_only_attributes(value.this):
            # a proxy that SWIG made: its state is in the library
            raise unreadable(path, name_of_type(value))
        attributes = {
            name: self.node(item, path_inside(value, path, name))
            for name, item in vars(value).items()
        }
        return {"kind": "object", "type": name_of_type(value), "attributes": attributes}
