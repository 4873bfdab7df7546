"""State with a name: the one registry behind digests, checkpoints and resume.

Whatever influences the numbers of a run after this moment is `Stateful` and registered. A component that
cannot take its state back raises `StateError`; nothing is skipped silently.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from metta.errors import StateError

__all__ = ["NamedState", "StateRegistry", "Stateful", "digest_of"]


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    state_name: str
    """Unique in a run; the key under which the state is kept."""
    state_version: int
    """Raised when the layout of `state_dict` changes."""

    def state_dict(self) -> Mapping[str, Any]:
        """Tensors, arrays and plain JSON values; safe to keep only until the next step."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore the state that `state_dict` returned."""
        ...


class NamedState:
    """Gives an object with `state_dict` and `load_state_dict` the name under which its state is kept."""

    state_version = 1

    def __init__(self, name: str, part: Any) -> None:
        self.state_name = name
        self.part = part

    def state_dict(self) -> Mapping[str, Any]:
        """The object's own state."""
        state: Mapping[str, Any] = self.part.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the object's state."""
        self.part.load_state_dict(state)


class StateRegistry:
    """Components by name, with one snapshot, one restore and one digest for all of them.

    registry = StateRegistry()
    registry.add(collector)
    before = registry.digest()
    """

    def __init__(self, components: Iterable[Stateful] = ()) -> None:
        self._components: dict[str, Stateful] = {}
        self.elsewhere: dict[str, dict[str, Any] | None] = {}
        """Components that other processes hold: what they were last, or None."""
        for component in components:
            self.add(component)

    def add(self, component: Stateful) -> None:
        """Register a component; its name must be new."""
        name = component.state_name
        if name in self._components:
            raise StateError(f"two components are called {name!r}; give one another state_name")
        self._components[name] = component

    def replace(self, component: Stateful) -> None:
        """Replace the component of the same name."""
        if component.state_name not in self._components:
            raise StateError(
                f"no component is called {component.state_name!r}; there are {self.names()}"
            )
        self._components[component.state_name] = component

    def get(self, name: str) -> Any:
        """The component of this name, or None."""
        return self._components.get(name)

    def names(self) -> list[str]:
        """Registered names in order of registration."""
        return list(self._components)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """``name -> {"version": int, "state": ...}``, sharing memory with the live components."""
        own = {
            name: {"version": part.state_version, "state": part.state_dict()}
            for name, part in self._components.items()
        }
        return own | {name: part for name, part in self.elsewhere.items() if part is not None}

    def restore(self, snapshot: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a snapshot: every registered component must be in it, and no other but `elsewhere`."""
        missing = sorted(self._components.keys() - snapshot.keys())
        unknown = sorted(snapshot.keys() - self._components.keys() - self.elsewhere.keys())
        if missing or unknown:
            raise StateError(
                f"the saved state does not fit this run: missing {missing or 'nothing'}, "
                f"unknown {unknown or 'nothing'}"
            )
        for name, part in self._components.items():
            found = snapshot[name]["version"]
            if found != part.state_version:
                raise StateError(
                    f"state of {name!r} has version {found}, this code reads {part.state_version}"
                )
        for name, part in self._components.items():
            part.load_state_dict(snapshot[name]["state"])

    def digest(self) -> str:
        """Hex sha256 over every registered value, bit for bit.

        Components with ``in_digest = False`` are left out: they hold where and how a run continues, not
        what it learned. So are entries that a component lists in `observed`: hooks write them, and the run
        does not depend on them.
        """
        counted = {
            name: {"version": part.state_version, "state": _unobserved(part)}
            for name, part in self._components.items()
            if getattr(part, "in_digest", True)
        }
        kinds = {name.partition("/")[0] for name in counted}
        others = {
            name: part
            for name, part in self.elsewhere.items()
            if part is not None and name.partition("/")[0] in kinds
        }
        return digest_of(counted | others)

    def digests(self) -> dict[str, str]:
        """A digest for every component of this process, to find the first difference."""
        return {name: digest_of(part.state_dict()) for name, part in self._components.items()}


def _unobserved(part: Stateful) -> Mapping[str, Any]:
    observed: frozenset[str] = getattr(part, "observed", frozenset())
    state = part.state_dict()
    return {k: v for k, v in state.items() if k not in observed} if observed else state


def digest_of(value: Any) -> str:
    """Hex sha256 of nested mappings, sequences, tensors, arrays and plain values.

    Key order does not count; dtype, shape, device-independent bytes and nesting do.
    """
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Feed every value in a form that no other value has, so that the digest is unambiguous."""
    if isinstance(value, Mapping):
        digest.update(b"{")
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            digest.update(f"{json.dumps([type(key).__name__, str(key)])}:".encode())
            _feed(digest, value[key])
        digest.update(b"}")
    elif isinstance(value, list | tuple):
        digest.update(b"[")
        for item in value:
            _feed(digest, item)
        digest.update(b"]")
    elif hasattr(value, "detach") or isinstance(value, np.ndarray | np.generic):
        kind, array = _as_array(value)
        digest.update(f"{kind}{tuple(value.shape)}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif value is None or isinstance(value, bool | int | float | str):
        digest.update(json.dumps(value).encode() + b"\n")
    else:
        raise StateError(
            f"a {type(value).__name__} has no digest; state is made of tensors, arrays, mappings, "
            "sequences, numbers, strings, booleans and None"
        )


def _as_array(value: Any) -> tuple[str, np.ndarray]:
    """Name of the dtype and the bytes of a tensor or array, also if NumPy lacks the dtype."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            value = tensor.numpy()
        except TypeError:  # bfloat16 and smaller floats
            import torch  # a tensor is here, so torch is loaded; configuration must not load it

            return str(tensor.dtype), tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise StateError("an array of Python objects has no digest; store numbers")
    return array.dtype.str, array
