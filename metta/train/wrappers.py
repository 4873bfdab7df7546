"""Wrappers of environments as settings: which there are, their arguments, and how they are written.

``FrameStack(4)``, ``FrameStack(stack_size=4)`` and ``{name: FrameStack, stack_size: 4}`` are the same.
Texts are read as literals and never run. `metta.envs.rows.wrappers` makes the wrappers.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metta.errors import ConfigError, did_you_mean
from metta.train.parsing.problems import BrokenRule, shown

__all__ = [
    "WRAPPERS",
    "WRAPPERS_PATH",
    "Argument",
    "Wrapper",
    "checked_wrappers",
    "read_wrapper",
    "wrapper_rules",
    "wrapper_texts",
]

WRAPPERS_PATH = "trainer.curriculum.wrappers"
"""The setting that holds them."""
_MAX_LENGTH = 1000
_REQUIRED: Any = object()
_WORDS = {"true": True, "false": False, "null": None, "none": None}
"""How YAML writes them."""


@dataclass(frozen=True)
class _Kind:
    """Values of an argument: what is allowed, in words and as a test."""

    words: str
    allows: Callable[[Any], bool]
    read: Callable[[Any], Any] = lambda value: value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _list_of(part: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(map(part, value))


def _at_least(least: int) -> _Kind:
    words = f"a whole number of at least {least}"
    return _Kind(words, lambda value: type(value) is int and least <= value < 2**31)


_COUNT, _TWO_OR_MORE, _WHOLE = _at_least(1), _at_least(2), _at_least(0)
_NUMBER = _Kind("a number", _is_number, float)
_BOUND = _Kind(
    "a number or null",
    lambda value: value is None or _is_number(value),
    lambda value: None if value is None else float(value),
)
_CHANCE = _Kind(
    "a number from 0 to less than 1", lambda value: _is_number(value) and 0 <= value < 1, float
)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_SIZES = _Kind("a list of whole numbers of at least 1", _list_of(_COUNT.allows), tuple)
_NAMES = _Kind("a list of texts", _list_of(lambda value: isinstance(value, str)), tuple)
_PADDING = _Kind("'reset' or 'zero'", lambda value: value in ("reset", "zero"))


@dataclass(frozen=True)
class Argument:
    """One argument of a wrapper; without a default it must be given."""

    name: str
    kind: _Kind
    default: Any = _REQUIRED


@dataclass(frozen=True)
class Wrapper:
    """A wrapper that settings may name."""

    maker: str | None
    """Its class in ``gymnasium.wrappers``; None: one of metta's own."""
    meaning: str
    arguments: tuple[Argument, ...] = ()

    @property
    def signature(self) -> str:
        """The arguments as they are written, e.g. ``stack_size, padding_type='reset'``."""
        return ", ".join(
            one.name if one.default is _REQUIRED else f"{one.name}={one.default!r}"
            for one in self.arguments
        )


WRAPPERS: dict[str, Wrapper] = {
    "FrameStack": Wrapper(
        "FrameStackObservation",
        "the last observations as one, along a new first axis",
        (Argument("stack_size", _COUNT), Argument("padding_type", _PADDING, "reset")),
    ),
    "ResizeObservation": Wrapper(
        None,
        "images of another size; each pixel is the mean of the area that it covers",
        (Argument("height", _COUNT), Argument("width", _COUNT)),
    ),
    "GrayscaleObservation": Wrapper(
        "GrayscaleObservation",
        "images in shades of grey, without the axis of colours unless it is kept",
        (Argument("keep_dim", _FLAG, False),),
    ),
    "ReshapeObservation": Wrapper(
        "ReshapeObservation",
        "the same numbers in another shape",
        (Argument("shape", _SIZES),),
    ),
    "FlattenObservation": Wrapper("FlattenObservation", "any observation as one vector"),
    "FilterObservation": Wrapper(
        "FilterObservation",
        "only these entries of a dictionary",
        (Argument("filter_keys", _NAMES),),
    ),
    "RescaleObservation": Wrapper(
        None,
        "bounded observations, scaled to other bounds",
        (Argument("min_obs", _NUMBER), Argument("max_obs", _NUMBER)),
    ),
    "DelayObservation": Wrapper(
        "DelayObservation",
        "observations of some steps ago; zeros at first",
        (Argument("delay", _WHOLE),),
    ),
    "TimeAwareObservation": Wrapper(
        "TimeAwareObservation",
        "the step of the episode as part of the observation",
        (Argument("flatten", _FLAG, True), Argument("normalize_time", _FLAG, False)),
    ),
    "MaxAndSkipObservation": Wrapper(
        "MaxAndSkipObservation",
        "each action for some steps; the maximum of the last two observations",
        (Argument("skip", _TWO_OR_MORE, 4),),
    ),
    "RescaleAction": Wrapper(
        None,
        "actions between these bounds, scaled to those of the environment",
        (Argument("min_action", _NUMBER), Argument("max_action", _NUMBER)),
    ),
    "ClipAction": Wrapper("ClipAction", "actions of any size, cut off at the bounds"),
    "StickyAction": Wrapper(
        "StickyAction",
        "with this probability the action before is taken once more",
        (Argument("repeat_action_probability", _CHANCE),),
    ),
    "RepeatAction": Wrapper(
        None,
        "each action for some steps, or until the episode ends; rewards are added up",
        (Argument("num_repeats", _TWO_OR_MORE),),
    ),
    "ScaleReward": Wrapper(
        None,
        "scale x reward + shift",
        (Argument("scale", _NUMBER), Argument("shift", _NUMBER, 0.0)),
    ),
    "ClipReward": Wrapper(
        "ClipReward",
        "rewards cut off at these bounds",
        (Argument("min_reward", _BOUND, None), Argument("max_reward", _BOUND, None)),
    ),
    "SignReward": Wrapper(None, "rewards of -1, 0 or 1"),
    "TimeLimit": Wrapper(
        "TimeLimit",
        "episodes are cut short (truncated) after so many steps",
        (Argument("max_episode_steps", _COUNT),),
    ),
}
"""Name in settings -> the wrapper; all resume to the bit where the environment does."""

_SPELLINGS = {
    "FrameStackObservation": "FrameStack",
    "GrayScaleObservation": "GrayscaleObservation",
    "ActionRepeat": "RepeatAction",
    "MaxAndSkip": "MaxAndSkipObservation",
}
_INSTEAD = {
    "NormalizeObservation": "write normalize_observations=true: the policy keeps the moments, so that "
    "they are saved and resumed with it",
    "NormalizeReward": "write normalize_returns=true: values are learned in units of the returns' "
    "deviation, and rewards stay as they are",
    "RecordEpisodeStatistics": "leave it out: returns and lengths of all episodes are recorded",
    "RecordVideo": "write replay_interval=N: a replay of an episode every N epochs",
    "Autoreset": "leave it out: episodes are reset already",
    "VecFrameStack": "write FrameStack(4): wrappers are applied to each environment",
}


def read_wrapper(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name of a wrapper and all its arguments by name; `ConfigError` says what is allowed."""
    if isinstance(entry, str):
        name, positional, named = _read_text(entry)
    elif isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        name, positional = entry["name"], []
        named = {key: value for key, value in entry.items() if key != "name"}
    else:
        raise ConfigError(
            f"found {shown(entry)}; a wrapper is written FrameStack(4) or {{name: FrameStack, stack_size: "
            "4}; one of your own belongs in a function that returns the wrapped environment"
        )
    name = _SPELLINGS.get(name, name)
    if name in _INSTEAD:
        raise ConfigError(f"{name} is not used here; {_INSTEAD[name]}")
    if name not in WRAPPERS:
        hint = did_you_mean(name, [*WRAPPERS, *_SPELLINGS])
        known = hint or f"; there are {', '.join(WRAPPERS)}"
        raise ConfigError(f"there is no wrapper {shown(name)}{known}")
    return name, _checked(name, positional, named)


def wrapper_texts(entries: Any) -> Any:
    """Entries as texts with all arguments; what cannot be read stays as it is, to be refused."""
    if isinstance(entries, str | Mapping):
        entries = [entries]
    if not isinstance(entries, Sequence):
        return entries
    found = []
    for entry in _joined(entries):
        try:
            found.append(_written(*read_wrapper(entry)))
        except ConfigError:
            found.append(entry if isinstance(entry, str) else _unread(entry))
    return found


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _unread(entry: Any) -> str:
    """A text that is refused for the same reason as the entry."""
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return _written(entry["name"], {str(k): v for k, v in entry.items() if k != "name"})
    return shown(entry)


def checked_wrappers(entries: Any) -> tuple[str, ...]:
    """Entries as texts with all arguments; `ConfigError` for the first that is wrong."""
    texts = wrapper_texts(entries)
    if not isinstance(texts, list):
        raise ConfigError(f"wrappers={shown(entries)}; allowed is a list, e.g. ['FrameStack(4)']")
    for rule in wrapper_rules(texts):
        raise ConfigError(f"wrappers: {rule.text}")
    return tuple(texts)


def wrapper_rules(entries: Sequence[str]) -> list[BrokenRule]:
    """What is wrong with the wrappers of a configuration."""
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            read_wrapper(entry)
        except ConfigError as error:
            found.append(BrokenRule(("wrappers",), f"wrapper {number}: {error}"))
    return found


def _joined(entries: Sequence[Any]) -> list[Any]:
    """Entries whose arguments YAML split at their commas, put together again: ``F(84`` and ``84)``."""
    found: list[Any] = []
    for entry in entries:
        before = found[-1] if found else None
        if isinstance(entry, str) and isinstance(before, str) and _is_open(before):
            found[-1] = f"{before}, {entry}"
        else:
            found.append(entry)
    return found


def _is_open(text: str) -> bool:
    return text.count("(") > text.count(")")


def _read_text(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError("it is too long")
        found = ast.parse(text.strip(), mode="eval").body
        if isinstance(found, ast.Name):
            return found.id, [], {}
        if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Name):
            raise ValueError("it is not of the form Name(arguments)")
        named = {str(one.arg): _literal(one.value) for one in found.keywords}
        if len(named) < len(found.keywords) or "None" in named:
            raise ValueError("an argument is given twice")
        return found.func.id, [_literal(one) for one in found.args], named
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = "it is not Python" if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(
            f"found {shown(text)}, which cannot be read ({why}); write the name and plain values, e.g. "
            "FrameStack(4) or ResizeObservation(height=84, width=84)"
        ) from None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is not a plain value") from None


def _checked(name: str, positional: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name, those that were left out too."""
    wrapper = WRAPPERS[name]
    usage = f"write {name}({wrapper.signature})"
    known = [one.name for one in wrapper.arguments]
    if len(positional) > len(known):
        raise ConfigError(
            f"{name} was given {len(positional)} arguments, it takes {len(known)}; {usage}"
        )
    given = dict(zip(known, positional, strict=False))
    for key in named:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"{name} has no argument {shown(key)}{hint}; {usage}")
        if key in given:
            raise ConfigError(f"{name} was given {key} twice; {usage}")
    given |= named
    found = {}
    for one in wrapper.arguments:
        value = given.get(one.name, one.default)
        if value is _REQUIRED:
            raise ConfigError(f"{name} needs {one.name}, {one.kind.words}; {usage}")
        if not one.kind.allows(value):
            raise ConfigError(f"{name}: {one.name}={shown(value)}; allowed is {one.kind.words}")
        found[one.name] = one.kind.read(value)
    return found
