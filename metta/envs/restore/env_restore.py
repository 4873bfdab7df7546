"""A Gymnasium environment and its wrappers brought to where another one stood.

Values are made anew; objects go on in those that stand in the same place, since no class is ever made from
what a file says.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv

from metta.envs.restore.env_values import (
    load_array,
    load_scalar,
    name_of_constant,
    name_of_type,
    parts_of_space,
    path_inside,
)
from metta.envs.restore.generator_state import load_generator_state
from metta.envs.rows.row_spec import GymEnv
from metta.errors import StateError

__all__ = ["restore_env"]

_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_NOTHING = object()
_MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What taking a state leads to where it is not one of this environment."""


def restore_env(env: GymEnv | VectorEnv[Any, Any, Any], tree: Mapping[str, Any]) -> None:
    """Bring an environment of the same making to where `snapshot_env` found the other one.

    It should have begun an episode, best with the seed of the one that the tree was taken in: objects
    that are made by a reset are then there. `StateError` names what does not fit; the environment is
    then neither here nor there, and must be reset.
    """
    if not isinstance(tree, Mapping) or tree.get("kind") not in ("object", "own"):
        raise StateError("this is not the state of an environment")
    try:
        _Restore().value(tree, env, "")
    except _MISFITS as error:
        raise StateError(f"{type(error).__name__}: {error}") from error


class _Restore:
    """One walk over a tree, along the live environment that takes it."""

    def __init__(self) -> None:
        self._shared: dict[int, Any] = {}
        self._taken: dict[int, Any] = {}
        """Live objects that already stand for some node, by their ids."""

    def value(self, node: Any, live: Any, path: str) -> Any:
        """What belongs in the place where `live` stands now."""
        if not isinstance(node, Mapping):
            return node
        kind = node["kind"]
        if kind == "same":
            return self._shared[node["id"]]
        if kind in _IN_PLACE:
            self._check_place(node, live, path)
            return _IN_PLACE[kind](self, node, live, path)
        if kind == "spec":
            # wrappers make theirs when they are first asked for it
            return None if live is _NOTHING else live
        if kind == "scalar":
            return load_scalar(node)
        if kind == "array":
            return self._keep(node, load_array(node))
        if kind == "generator":
            return self._keep(node, load_generator_state(node["state"], self._free(live)))
        if kind == "dict":
            return self._mapping(node, live, path)
        return self._sequence(node, live, path)

    def _check_place(self, node: Mapping[str, Any], live: Any, path: str) -> None:
        """An object goes on in the one that is there now, which must be of its kind."""
        if node["kind"] == "constant":
            wanted, found = node["name"], name_of_constant(live)
        else:
            wanted, found = node["type"], name_of_type(live)
        there = "nothing" if live is _NOTHING else found
        if live is _NOTHING or wanted != found:
            raise StateError(f"{path or 'the environment'} was a {wanted}, now there is {there}")
        if node["kind"] in ("object", "own", "space") and self._free(live) is _NOTHING:
            raise StateError(f"{path} was a {wanted} of its own, now it is shared")

    def _free(self, live: Any) -> Any:
        """`live`, unless it stands for another node already."""
        if id(live) in self._taken:
            return _NOTHING
        self._taken[id(live)] = live
        return live

    def _keep(self, node: Mapping[str, Any], made: Any) -> Any:
        if "id" in node:
            self._shared[node["id"]] = made
        return made

    def _object(self, node: Mapping[str, Any], live: Any, path: str) -> Any:
        self._keep(node, live)
        attributes = vars(live)
        present = {
            name: self.value(item, attributes.get(name, _NOTHING), path_inside(live, path, name))
            for name, item in node["attributes"].items()
        }
        attributes.clear()
        attributes.update(present)
        return live

    def _own_state(self, node: Mapping[str, Any], live: Any, path: str) -> Any:
        self._keep(node, live)
        if "env" in node:
            self.value(node["env"], live.env, path)
        state = self.value(node["state"], _NOTHING, path)
        try:
            live.set_state(state)
        except Exception as error:
            raise StateError(
                f"{name_of_type(live)}.set_state() failed: {type(error).__name__}: {error}"
            ) from error
        return live

    def _space(self, node: Mapping[str, Any], live: spaces.Space[Any], path: str) -> Any:
        self._keep(node, live)
        present = vars(live).get("_np_random")
        live._np_random = self.value(node["generator"], present, path)
        for part, inner in zip(node["parts"], parts_of_space(live), strict=True):
            self.value(part, inner, path)
        return live

    def _enum(self, node: Mapping[str, Any], live: Any, path: str) -> Any:
        del path
        return type(live)[node["name"]]

    def _constant(self, node: Mapping[str, Any], live: Any, path: str) -> Any:
        del node, path
        return live

    def _mapping(self, node: Mapping[str, Any], live: Any, path: str) -> dict[Any, Any]:
        made: dict[Any, Any] = self._keep(node, {})
        for key_node, item in node["items"]:
            key = self.value(key_node, _NOTHING, path)
            place = live.get(key, _NOTHING) if isinstance(live, dict) else _NOTHING
            made[key] = self.value(item, place, f"{path}[{key!r}]")
        return made

    def _sequence(self, node: Mapping[str, Any], live: Any, path: str) -> Any:
        kind, items = node["kind"], node["items"]
        places = list(live) if isinstance(live, (list, tuple, deque)) else []
        places += [_NOTHING] * (len(items) - len(places))
        made: Any = []
        if kind == "deque":
            made = deque(maxlen=node["maxlen"])
        if kind in ("list", "deque"):
            # before its members: one of them may hold it
            self._keep(node, made)
        for index, item in enumerate(items):
            made.append(self.value(item, places[index], f"{path}[{index}]"))
        return made if kind in ("list", "deque") else self._keep(node, _SEQUENCES[kind](made))


_IN_PLACE: dict[str, Callable[[_Restore, Mapping[str, Any], Any, str], Any]] = {
    "object": _Restore._object,
    "own": _Restore._own_state,
    "space": _Restore._space,
    "enum": _Restore._enum,
    "constant": _Restore._constant,
}
