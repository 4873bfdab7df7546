"""The state of random generators as plain data, and back."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from metta.errors import StateError

__all__ = ["GENERATOR_TYPES", "generator_state", "is_global_generator", "load_generator_state"]

GENERATOR_TYPES = (np.random.Generator, np.random.RandomState, random.Random)

_BIT_GENERATORS = {
    made.__name__: made
    for made in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}
_WORDS = {"uint32": np.uint32, "uint64": np.uint64}
_LAST_POSITIONS = {"pos": 624, "buffer_pos": 4}
"""NumPy reads its tables of words at these positions, and does not look whether they are inside."""


def is_global_generator(generator: Any) -> bool:
    """Whether the whole process shares this one: its state does not belong to one environment."""
    shared_by_all = (
        getattr(np.random.random, "__self__", None),
        getattr(random.random, "__self__", None),
    )
    return any(generator is one for one in shared_by_all)


def generator_state(generator: Any) -> dict[str, Any] | None:
    """What the generator will draw, and how it will spawn others; None where that cannot be read."""
    if type(generator) is np.random.Generator:
        bits = generator.bit_generator
        if type(bits).__name__ not in _BIT_GENERATORS:
            return None
        return {"bits": _plain(bits.state), "seeds": _seed_sequence_state(bits.seed_seq)}
    if type(generator) is np.random.RandomState:
        return {"bits": _plain(generator.get_state(legacy=False))}
    if type(generator) is random.Random:
        version, words, gauss = generator.getstate()
        return {"version": version, "words": np.array(words, np.int64), "gauss": gauss}
    return None


def load_generator_state(state: Mapping[str, Any]) -> Any:
    """A new generator of that state."""
    try:
        if "version" in state:
            return _load_python(state)
        if "seeds" in state:
            return _load_numpy(state)
        legacy = np.random.RandomState()
        legacy.set_state(_unplain(state["bits"]))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateError(f"this is not a state of a random generator: {error}") from error
    return legacy


def _load_python(state: Mapping[str, Any]) -> random.Random:
    loaded = random.Random()
    words = tuple(int(word) for word in state["words"])
    loaded.setstate((int(state["version"]), words, state["gauss"]))
    return loaded


def _load_numpy(state: Mapping[str, Any]) -> np.random.Generator:
    seeds, made = state["seeds"], _BIT_GENERATORS[state["bits"]["bit_generator"]]
    sequence = None if seeds is None else np.random.SeedSequence(**_seed_arguments(seeds))
    loaded = np.random.Generator(made(sequence))
    loaded.bit_generator.state = _unplain(state["bits"])
    return loaded


def _seed_sequence_state(sequence: Any) -> dict[str, Any] | None:
    if type(sequence) is not np.random.SeedSequence:
        return None  # seeded in another way: it cannot spawn
    entropy = sequence.entropy
    return {
        "entropy": entropy if entropy is None or isinstance(entropy, int) else _ints(entropy),
        "spawn_key": _ints(sequence.spawn_key),
        "n_children_spawned": int(sequence.n_children_spawned),
    }


def _seed_arguments(seeds: Mapping[str, Any]) -> dict[str, Any]:
    return {**seeds, "spawn_key": tuple(seeds["spawn_key"])}


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


def _plain(value: Any) -> Any:
    """Words as bytes, since few formats hold unsigned numbers."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"words": value.dtype.name, "bytes": np.frombuffer(value.tobytes(), np.uint8)}
    return value.item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, (int, float, str)):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not part of it")
    if "words" in value:
        return np.frombuffer(value["bytes"].tobytes(), _WORDS[value["words"]])
    for name, last in _LAST_POSITIONS.items():
        if not 0 <= value.get(name, 0) <= last:
            raise ValueError(f"{name} is {value[name]}, not in 0..{last}")
    return {key: _unplain(item) for key, item in value.items()}
