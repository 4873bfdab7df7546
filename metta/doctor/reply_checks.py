"""Checks of what an environment returns, before anything is converted or copied."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from metta.doctor.report import Finding, Severity
from metta.envs.rows.action_masks import mask_layout_of
from metta.envs.rows.row_spec import GymEnv
from metta.nested import leaves
from metta.spaces import MASK_KEY, obs_spec_of

__all__ = ["ReplyInspector"]

_OTHER_MASK_NAMES = (
    "action_masks", "actions_mask", "mask", "legal_actions", "legal_moves", "legal_actions_mask",
    "valid_actions", "valid_moves", "valid_action_mask", "avail_actions", "available_actions",
    "invalid_action_mask",
)  # fmt: skip
"""Under these names other libraries look for masks; metta reads `action_mask` only."""
_METHOD = "action_masks"
_RESET_VALUES, _STEP_VALUES = 2, 5
_TOLERANCE = 1e-5
_FLOAT32_DIGITS = 1e-6


class ReplyInspector(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Lets everything pass, counts what does not fit, and keeps the first example of each kind."""

    def __init__(self, env: GymEnv) -> None:
        super().__init__(env)
        self._space = env.observation_space
        self._has_mask = obs_spec_of(self._space).mask_path is not None
        layout = mask_layout_of(env.action_space)
        self._mask_size = 0 if layout is None else layout.size
        self._other_mask = self._find_other_mask(env)
        self._count = 0
        self._misfits: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._ranges: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Smallest and largest numbers of each float64 array."""
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_changed = 0
        self._odd_flags: set[str] = set()

    def __str__(self) -> str:
        return str(self.env)  # errors name the user's own

    def reset(self, **options: Any) -> Any:
        """Begin an episode; a reply of another form is for others to refuse."""
        replied: Any = self.env.reset(**options)
        if isinstance(replied, tuple) and len(replied) == _RESET_VALUES:
            self._look(*replied)
        return replied

    def step(self, action: Any) -> Any:
        """Take an action."""
        replied: Any = self.env.step(action)
        if isinstance(replied, tuple) and len(replied) == _STEP_VALUES:
            observation, _, *flags, info = replied
            odd = [flag for flag in flags if not isinstance(flag, bool | np.bool_)]
            self._odd_flags |= {type(flag).__name__ for flag in odd}
            self._look(observation, info)
        return replied

    def _look(self, observation: Any, info: Any) -> None:
        """Look at an observation, and at the one before: it must not have changed since."""
        self._count += 1
        self._num_changed += any(not _same(kept, copy) for kept, copy in self._held)
        arrays = [leaf for _, leaf in leaves(observation) if isinstance(leaf, np.ndarray)]
        self._held = [(leaf, leaf.copy()) for leaf in arrays]
        for number, (leaf, _) in enumerate(self._held):
            if leaf.dtype == np.float64:
                low, high = self._ranges.get(number, (leaf, leaf))
                self._ranges[number] = np.fmin(low, leaf), np.fmax(high, leaf)
        for kind, example in dict(_misfits(self._space, observation, "")).items():
            self._misfits[kind] += 1
            self._examples.setdefault(kind, example)
        if not self._has_mask and isinstance(info, dict):
            self._has_mask = MASK_KEY in info
            self._other_mask = self._other_mask or self._mask_in(info, "info")

    def findings(self) -> Iterator[Finding]:
        """The verdicts."""
        yield from self._space_findings()
        yield from self._precision_findings()
        if self._num_changed:
            yield Finding(
                "observation buffers",
                "warning",
                f"{self._num_changed} of {self._count} observations changed after they were returned",
                "the environment writes each observation into the array that it returned before; metta "
                "copies it in time, but wrappers, hooks and your own loops that keep it do not",
                "return a copy: `return self._observation.copy(), ...`",
            )
        else:
            yield Finding("observation buffers", "ok", "observations stay as they were returned")
        if self._odd_flags:
            yield Finding(
                "flags",
                "note",
                f"terminated or truncated is a {' or a '.join(sorted(self._odd_flags))}, not a bool",
                cure="return bool(terminated), bool(truncated)",
            )
        if self._other_mask and not self._has_mask:
            yield Finding(
                "action mask",
                "fault",
                f"legal actions are offered as {self._other_mask}, which metta does not read",
                f"masks are read from info[{MASK_KEY!r}] or the observation's entry {MASK_KEY!r} only, so "
                "the policy would take illegal actions",
                f"return info = {{{MASK_KEY!r}: mask}} from reset() and step(), with {self._mask_size} "
                "booleans, True where an action is legal",
            )

    def _space_findings(self) -> Iterator[Finding]:
        cures: dict[str, tuple[Severity, str]] = {
            "shape": ("fault", "make observation_space say what reset() and step() return"),
            "dtype": (
                "warning",
                "convert what you return to the dtype of the space, or declare the other dtype",
            ),
            "bounds": (
                "warning",
                "widen the bounds of observation_space to what really occurs, or clip",
            ),
        }
        for kind, count in self._misfits.items():
            severity, cure = cures[kind]
            yield Finding(
                "observation space",
                severity,
                f"{count} of {self._count} observations are not in it: {self._examples[kind]}",
                "observation_space promises something else than reset() and step() return",
                cure,
            )
        if not self._misfits:
            yield Finding("observation space", "ok", f"{self._count} observations are all in it")

    def _precision_findings(self) -> Iterator[Finding]:
        for low, high in self._ranges.values():
            width, level = high - low, np.maximum(np.abs(low), np.abs(high))
            is_lost = (width > 0) & (width < _FLOAT32_DIGITS * level)
            if is_lost.any():
                yield Finding(
                    "observation precision",
                    "fault",
                    f"{int(is_lost.sum())} numbers of about {level[is_lost].max():.3g} vary by "
                    f"{width[is_lost].max():.3g} only",
                    "metta keeps observations as float32, in which digits after the seventh vanish",
                    "subtract the offset in the environment, e.g. give a position relative to the start",
                )

    def _find_other_mask(self, env: GymEnv) -> str:
        if not self._mask_size:
            return ""
        if callable(getattr(env.unwrapped, _METHOD, None)):
            return f"the method {_METHOD}()"
        if isinstance(self._space, spaces.Dict):
            parts = self._space.spaces.items()
            shapes = {key: np.empty(part.shape or ()) for key, part in parts}
            return self._mask_in(shapes, "the observation")
        return ""

    def _mask_in(self, entries: dict[str, Any], where: str) -> str:
        for name in _OTHER_MASK_NAMES:
            if name not in entries or not self._mask_size:
                continue
            is_list = name.startswith(("legal", "valid", "avail")) and isinstance(
                entries[name], list | tuple | set
            )
            if is_list or np.size(entries[name]) == self._mask_size:
                return f"{where}[{name!r}]"
        return ""


def _same(kept: np.ndarray, copy: np.ndarray) -> bool:
    return bool(np.array_equal(kept, copy, equal_nan=kept.dtype.kind == "f"))


def _misfits(space: spaces.Space[Any], value: Any, key: str) -> Iterator[tuple[str, str]]:
    """What is wrong with an observation: (kind, example)."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for name, part in parts:
            try:
                entry = value[name]
            except (KeyError, IndexError, TypeError):
                yield "shape", f"entry {name!r} is missing"
                continue
            yield from _misfits(part, entry, f"{key}{name}: ")
        return
    array = np.asarray(value)
    if array.shape != (space.shape or ()):
        yield "shape", f"{key}shape {array.shape} instead of {space.shape or ()}"
    elif isinstance(space, spaces.Box):
        yield from _box_misfits(space, array, key)
    elif not space.contains(value):
        yield "bounds", f"{key}{value!r} is not in {space}"


def _box_misfits(space: spaces.Box, array: np.ndarray, key: str) -> Iterator[tuple[str, str]]:
    if not np.can_cast(array.dtype, space.dtype):
        yield "dtype", f"{key}dtype {array.dtype} instead of {space.dtype}"
    if array.dtype.kind not in "biuf":
        return
    room = _TOLERANCE * (1.0 + np.abs(array.astype(np.float64)))
    outside = (array < space.low - room) | (array > space.high + room)
    if outside.any():
        number = array[outside].flat[0]
        low, high = space.low[outside].flat[0], space.high[outside].flat[0]
        yield "bounds", f"{key}{number:.6g} lies outside of {low:.6g} to {high:.6g}"
