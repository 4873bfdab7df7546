"""Which call may come next: reset, then send and recv of each group in turn, until close."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.vec_env import ObsArrays
from metta.errors import EnvError, SpaceError
from metta.spaces import ObsSpec

__all__ = ["CallOrder", "check_action_space", "check_actions", "check_reset"]

_SUPPORTED_ACTIONS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)


_NEW = "reset() was not called yet"
_READY = "no step is under way: send() comes first"
_STEPPING = "a step is under way: recv() comes next"
_CLOSED = "it is closed; make a new one"


class CallOrder:
    """Raises an error for calls out of turn, instead of a hang or a stale observation."""

    def __init__(self, num_groups: int) -> None:
        self._states = [_NEW] * num_groups
        self.num_resets = 0

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._states[0] is _CLOSED

    def reset(self) -> list[int]:
        """Note a reset; the result names groups whose step is still under way."""
        self.num_resets += 1
        if self.is_closed:
            raise self._out_of_turn("reset()", 0)
        stepping = [g for g, state in enumerate(self._states) if state is _STEPPING]
        self._states = [_READY] * len(self._states)
        return stepping

    def forget(self) -> None:
        """Note that the state of rows is unknown, until `reset` or `mark_placed`."""
        if self.is_closed:
            raise self._out_of_turn("load_state_dict()", 0)
        self._states = [_NEW] * len(self._states)

    def mark_placed(self) -> None:
        """Note that every row is inside an episode, without a reset."""
        self._states = [_READY] * len(self._states)

    def is_between_steps(self, call: str) -> bool:
        """Whether rows are between two steps (False: before the first reset); else out of turn."""
        for group, state in enumerate(self._states):
            if state in (_STEPPING, _CLOSED):
                raise self._out_of_turn(call, group)
        return self._states[0] is _READY

    def require_ready(self, call: str) -> None:
        """Refuse a call that steps every group, unless all of them are between two steps."""
        for group, state in enumerate(self._states):
            if state is not _READY:
                raise self._out_of_turn(call, group)

    def send(self, group: int) -> None:
        """Note that a step of `group` begins."""
        if self._state_of(group) is not _READY:
            raise self._out_of_turn(f"send({group})", group)
        self._states[group] = _STEPPING

    def recv(self, group: int) -> None:
        """Note that a step of `group` is asked for."""
        if self._state_of(group) is not _STEPPING:
            raise self._out_of_turn(f"recv({group})", group)

    def received(self, group: int) -> None:
        """Note that a step of `group` is over."""
        self._states[group] = _READY

    def close(self) -> None:
        """Note that nothing may follow."""
        self._states = [_CLOSED] * len(self._states)

    def _state_of(self, group: int) -> str:
        if not 0 <= group < len(self._states):
            raise EnvError(
                f"group {group} does not exist; this environment has {len(self._states)} groups"
            )
        return self._states[group]

    def _out_of_turn(self, call: str, group: int) -> EnvError:
        return EnvError(f"{call} was called out of turn: {self._states[group]}")


def check_actions(actions: Any, num_rows: int, space: spaces.Space[Any]) -> np.ndarray:
    """`actions` as an array ``[num_rows, ...]`` that the action space's dtype can hold."""
    array = np.asarray(actions)
    expected = (num_rows, *(space.shape or ()))
    if array.shape != expected:
        raise EnvError(f"got actions of shape {array.shape}, but this group needs {expected}")
    dtype = space.dtype or np.dtype(object)
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(
            f"got actions of dtype {array.dtype}, but the action space {space} needs {space.dtype}"
        )
    return array


def check_action_space(space: spaces.Space[Any]) -> None:
    """Refuse action spaces whose actions are not one array."""
    if not isinstance(space, _SUPPORTED_ACTIONS):
        raise SpaceError(
            f"action space {space} is not supported; supported: Discrete, MultiDiscrete, MultiBinary "
            "and Box (flatten it with a gymnasium action wrapper)"
        )


def check_reset(seeds: Sequence[int], obs_out: ObsArrays, num_rows: int, spec: ObsSpec) -> None:
    """Refuse seeds or output arrays that do not fit."""
    if len(seeds) != num_rows:
        raise EnvError(f"reset got {len(seeds)} seeds for {num_rows} rows; give one seed per row")
    for leaf in spec.leaves:
        found = obs_out.get(leaf.key)
        expected = (num_rows, *leaf.shape)
        if found is None or found.shape != expected or found.dtype != leaf.dtype:
            what = "nothing" if found is None else f"{found.shape} {found.dtype}"
            raise EnvError(
                f"reset writes observation {leaf.key!r} as {expected} {leaf.dtype}, but obs_out has "
                f"{what} there; allocate it with obs_spec.zeros({num_rows})"
            )
