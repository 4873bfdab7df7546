"""The state of an environment that gives and takes it itself, with that of the wrappers around it.

The innermost environment has `get_state()` and `set_state(state)`. A wrapper has them too, or is one of
Gymnasium's that are known here. Nothing else is looked into, pickled or copied.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper

from metta.envs.restore.env_values import UnreadableStateError, from_plain, name_of_type, to_plain
from metta.errors import EnvError, StateError

__all__ = ["has_own_state", "lasting_wrapper", "load_own_state", "own_state"]

AnyEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]

_STATELESS = (
    "ClipAction",
    "ClipReward",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "GrayscaleObservation",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RepeatAction",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "TransformAction",
    "TransformObservation",
    "TransformReward",
)
_LASTING: dict[str, tuple[str, ...]] = {
    "NormalizeObservation": (
        "obs_rms.mean",
        "obs_rms.var",
        "obs_rms.count",
        "_update_running_mean",
    ),
    "NormalizeReward": (
        "return_rms.mean",
        "return_rms.var",
        "return_rms.count",
        "discounted_reward",
        "_update_running_mean",
    ),
}
"""What survives a reset, so that no repeated episode brings it back."""
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_STATELESS, ()),
    **_LASTING,
    "DelayObservation": ("observation_queue",),
    "FrameStackObservation": ("obs_queue",),
    "MaxAndSkipObservation": ("_obs_buffer",),
    "RecordEpisodeStatistics": (
        "episode_count",
        "episode_returns",
        "episode_lengths",
        "time_queue",
        "return_queue",
        "length_queue",
    ),
    "StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    "TimeAwareObservation": ("timesteps",),
    "TimeLimit": ("_elapsed_steps",),
}
"""Gymnasium's wrappers by name, since versions differ in which they have, and their attributes that a reset
with the episode's seed does not bring back."""

_MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of loading a state that is not of this environment."""


def has_own_state(env: AnyEnv) -> bool:
    """Whether a layer gives and takes its state itself."""
    return all(callable(getattr(type(env), name, None)) for name in ("get_state", "set_state"))


def lasting_wrapper(env: AnyEnv) -> str | None:
    """The wrapper, if there is one, whose statistics last longer than an episode."""
    return next(
        (name for layer in _layers(env) if (name := _gymnasium_name(layer)) in _LASTING), None
    )


def own_state(env: AnyEnv) -> dict[str, Any]:
    """A copy of an environment's state; `UnreadableStateError` if it does not give one."""
    return {
        "layers": [
            {"type": name_of_type(layer), "state": _state_of(layer)} for layer in _layers(env)
        ]
    }


def load_own_state(env: AnyEnv, state: Mapping[str, Any]) -> None:
    """Load a state into an environment of the same kind, which has begun an episode.

    `StateError` if the state is not of such an environment, `EnvError` if it refuses the state; it is
    then in an undefined state, and must be reset.
    """
    if isinstance(state, Mapping) and "kind" in state:
        raise StateError(
            "it was read from the environment's attributes, as older versions of metta did; finish the run "
            "with the version that began it"
        )
    try:
        layers, saved = list(_layers(env)), list(state["layers"])
        names = [name_of_type(layer) for layer in layers]
        found = [one["type"] for one in saved]
        if found != names:
            raise StateError(f"it is of {found}, from outside in, but this is {names}")
        for layer, one in reversed(list(zip(layers, saved, strict=True))):
            _load(layer, from_plain(one["state"]))
    except _MISFITS as error:
        raise StateError(f"{type(error).__name__}: {error}") from error


def _layers(env: AnyEnv) -> Iterator[Any]:
    """Wrappers and the environment, from outside in."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper | VectorWrapper):
        yield layer
        layer = layer.env
    yield layer


def _gymnasium_name(layer: Any) -> str:
    """The name of a wrapper of Gymnasium's own; empty for any other layer, and for wrappers of vectors."""
    kind = type(layer)
    is_own = kind.__module__.startswith("gymnasium.wrappers.") and isinstance(
        layer, gymnasium.Wrapper
    )
    return kind.__name__ if is_own else ""


def _state_of(layer: Any) -> Any:
    name = name_of_type(layer)
    if has_own_state(layer):
        try:
            state = layer.get_state()
        except UnreadableStateError:
            raise
        except Exception as error:
            raise UnreadableStateError(
                f"{name}.get_state() failed: {type(error).__name__}: {error}"
            ) from error
        return to_plain(state, f"{name}.get_state()")
    paths = _ATTRIBUTES.get(_gymnasium_name(layer))
    if paths is None:
        raise UnreadableStateError(f"{name} has no get_state() and set_state(state)")
    try:
        found = {path: attrgetter(path)(layer) for path in paths}
    except AttributeError as error:
        raise UnreadableStateError(
            f"this version of Gymnasium has another {name}: {error}"
        ) from error
    return {
        path: to_plain(list(value) if isinstance(value, deque) else value, f"{name}.{path}")
        for path, value in found.items()
    }


def _load(layer: Any, state: Any) -> None:
    if has_own_state(layer):
        try:
            layer.set_state(state)
        except Exception as error:
            raise EnvError(
                f"{name_of_type(layer)}.set_state() failed: {type(error).__name__}: {error}"
            ) from error
        return
    for path in _ATTRIBUTES.get(_gymnasium_name(layer), ()):
        owner, _, name = path.rpartition(".")
        holder = attrgetter(owner)(layer) if owner else layer
        if isinstance(getattr(holder, name), deque):
            queue = getattr(holder, name)
            queue.clear()
            queue.extend(state[path])
        else:
            setattr(holder, name, state[path])
