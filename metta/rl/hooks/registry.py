"""`HookRegistry`: which hooks receive which event, and with which values."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from metta.errors import HookError, MettaWarning, did_you_mean
from metta.rl.hooks.base import EVENTS, TrainerHook
from metta.rl.training_state import TrainerState

__all__ = ["HookRegistry"]

_ON_ERROR = ("raise", "warn", "disable")
_RANKS = ("master", "all")


@dataclass(eq=False)  # an entry is itself, whatever its hook takes for equal
class _Entry:
    name: str
    hook: Any
    order: int
    listeners: dict[str, Callable[[Mapping[str, Any]], Any]]
    enabled: bool = True
    is_open: bool = True


@dataclass
class HookRegistry:
    """Hooks in order, and the values that every event offers.

        hooks = HookRegistry(state, policy=policy, optimizer=optimizer)
        hooks.add(my_hook)
        hooks.fire("on_rollout_end", rollout_stats=stats, experience=buffer)

    Changes made while an event runs count from the next event on; a hook that is removed receives nothing
    more.
    """

    state: TrainerState
    policy: Any = None
    optimizer: Any = None
    config: Any = None
    registry: Any = None
    """The run's `StateRegistry`."""
    wandb_run: Any = None
    stats_client: Any = None
    is_master: bool = True
    """Whether this is the first rank; hooks that name no ranks receive events there only."""
    _entries: list[_Entry] = field(default_factory=list)

    def add(self, hook: Any) -> str:
        """Register a hook; returns the name under which it is known here.

        A hook is any object with at least one event; `HookError` names whatever does not fit.
        """
        return self._insert(self._checked(hook))

    def _checked(self, hook: Any) -> _Entry:
        """An entry for a hook that can be registered; it has no name yet."""
        kind = type(hook).__name__
        if isinstance(hook, type):
            raise HookError(f"{hook.__name__} is a class; add an instance: {hook.__name__}(...)")
        if any(entry.hook is hook for entry in self._entries):
            raise HookError(f"{kind} is registered already; make a second instance")
        listeners = _listeners(hook)
        mode = getattr(hook, "on_error", "raise")
        if mode not in _ON_ERROR:
            raise HookError(f"{kind}.on_error is {mode!r}; it must be one of {_ON_ERROR}")
        if (ranks := getattr(hook, "ranks", "master")) not in _RANKS:
            raise HookError(f"{kind}.ranks is {ranks!r}; it must be one of {_RANKS}")
        return _Entry("", hook, int(getattr(hook, "order", TrainerHook.order)), listeners)

    def _insert(self, entry: _Entry) -> str:
        stem, number = type(entry.hook).__name__, 1
        taken = {other.name for other in self._entries}
        while (name := stem if number == 1 else f"{stem}#{number}") in taken:
            number += 1
        entry.name = name
        # sorted is stable: ties keep the order of registration; a new list, so that a running event is safe
        self._entries = sorted([*self._entries, entry], key=lambda entry: entry.order)
        return name

    def remove(self, hook: Any) -> Any:
        """Close a hook and take it out; `hook` is the hook or its name. Returns the hook."""
        entry = self._find(hook)
        self._entries = [other for other in self._entries if other is not entry]
        self._close_entry(entry, None)
        return entry.hook

    def replace(self, hook: Any, other: Any) -> str:
        """Put `other` in the place of a hook, which is closed; returns the new name."""
        old, new = self._find(hook), self._checked(other)  # refused before anything changes
        self._entries = [entry for entry in self._entries if entry is not old]
        name = self._insert(new)
        self._close_entry(old, None)
        return name

    def enable(self, hook: Any) -> None:
        """Let a hook receive events again."""
        self._find(hook).enabled = True

    def disable(self, hook: Any) -> None:
        """Keep a hook registered, but without events; it is still closed at the end."""
        self._find(hook).enabled = False

    def _find(self, hook: Any) -> _Entry:
        for entry in self._entries:
            if entry.hook is hook or entry.name == hook:
                return entry
        names = [entry.name for entry in self._entries]
        wanted = hook if isinstance(hook, str) else type(hook).__name__
        raise HookError(
            f"no hook {wanted!r} is registered; there are {names}{did_you_mean(str(wanted), names)}"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([entry.hook for entry in self._entries])

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def checkpoint_hook(self) -> Any:
        """The enabled hook whose role is to save checkpoints, or None."""
        for entry in self._entries:
            if entry.enabled and getattr(entry.hook, "role", None) == "checkpoint":
                return entry.hook
        return None

    def describe(self) -> str:
        """A table of hooks in the order in which they receive events."""
        rows = [("order", "hook", "on error", "enabled", "events")]
        for entry in self._entries:
            mode, enabled = (
                getattr(entry.hook, "on_error", "raise"),
                "yes" if entry.enabled else "no",
            )
            rows.append((str(entry.order), entry.name, mode, enabled, ", ".join(entry.listeners)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                 for row in rows]  # fmt: skip
        return "\n".join(line.rstrip() for line in lines)

    def fire(self, event: str, **offers: Any) -> list[Any]:
        """Call every enabled hook that handles the event; returns what they returned."""
        returned = []
        for entry, listener in self._listening(event):
            if entry not in self._entries:  # removed, and so closed, by one before it
                continue
            try:
                returned.append(listener(self._offers(offers)))
            except Exception as error:  # noqa: BLE001  # whatever a hook raises is named after it
                self._failed(entry, event, error)
        return returned

    def _listening(self, event: str) -> list[tuple[_Entry, Callable[[Mapping[str, Any]], Any]]]:
        """Hooks that receive this event; what changes while it runs counts from the next one on."""
        return [
            (entry, entry.listeners[event])
            for entry in self._entries
            if entry.enabled and event in entry.listeners and self._is_called_here(entry)
        ]

    def _is_called_here(self, entry: _Entry) -> bool:
        return self.is_master or getattr(entry.hook, "ranks", "master") == "all"

    def _offers(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "trainer_state": self.state,
            "policy": self.policy,
            "optimizer": self.optimizer,
            "config": self.config,
            "registry": self.registry,
            "eval_scores": self.state.eval_scores,
            "wandb_run": self.wandb_run,
            "stats_client": self.stats_client,
            "checkpoint_hook": self.checkpoint_hook,
            **extra,
        }

    def _failed(self, entry: _Entry, event: str, error: Exception) -> None:
        mode = getattr(entry.hook, "on_error", "raise")
        described = self._describe_failure(entry, event, error)
        if mode == "raise":
            raise HookError(described) from error
        entry.enabled = entry.enabled and mode != "disable"
        consequence = "the hook is disabled" if mode == "disable" else "training continues"
        warnings.warn(f"{described}; {consequence}", MettaWarning, stacklevel=4)

    def _describe_failure(self, entry: _Entry, event: str, error: BaseException) -> str:
        return (
            f"hook {entry.name!r} failed in {event} at epoch {self.state.epoch}, step "
            f"{self.state.agent_step:,}: {type(error).__name__}: {error}"
        )

    def fire_exception(self, exc: BaseException) -> None:
        """Report to every hook that training failed; their own failures become notes on `exc`."""
        for entry, listener in self._listening("on_exception"):
            try:
                listener(self._offers({"exc": exc}))
            except BaseException as error:  # noqa: BLE001  # the first exception is never hidden
                exc.add_note(self._describe_failure(entry, "on_exception", error))

    def open(self) -> None:
        """A training begins: each hook will be closed once after it."""
        for entry in self._entries:
            entry.is_open = True

    def close(self, exc: BaseException | None = None) -> None:
        """Close every hook that is open, in reverse order, whatever happens to the others.

        Failures become notes on `exc`, or raise a `HookError` if it is None.
        """
        first: BaseException | None = None
        for entry in reversed(self._entries):
            try:
                self._close_entry(entry, exc)
            except BaseException as error:  # noqa: BLE001  # an interrupt must not leave others open
                if exc is not None:
                    exc.add_note(f"{type(error).__name__}: {error}")
                first = first or error
        if first is not None and exc is None:
            raise first

    def _close_entry(self, entry: _Entry, exc: BaseException | None) -> None:
        listener = entry.listeners.get("close")
        if not entry.is_open:
            return
        entry.is_open = False
        if listener is None:
            return
        try:
            listener(self._offers({"exc": exc}))
        except Exception as error:  # noqa: BLE001  # whatever a hook raises is named after it
            self._failed(entry, "close", error)


def _listeners(hook: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Event -> a call that picks the values which the hook's method names."""
    kind = type(hook).__name__
    for name in dir(hook):
        if name.startswith("on_") and name not in EVENTS and callable(getattr(hook, name, None)):
            raise HookError(
                f"{kind}.{name} is not an event, so it would never be called{did_you_mean(name, EVENTS)}; "
                f"events are {', '.join(EVENTS)}"
            )
    listeners = {}
    for event, offered in EVENTS.items():
        method = getattr(hook, event, None)
        if method is None or getattr(method, "__func__", None) is getattr(TrainerHook, event):
            continue
        if not callable(method):
            raise HookError(f"{kind}.{event} is a {type(method).__name__}, not a method")
        listeners[event] = _listener(f"{kind}.{event}", method, offered)
    if not listeners:
        raise HookError(
            f"{kind} handles no event, so it would do nothing; define at least one of "
            f"{', '.join(EVENTS)}"
        )
    return listeners


def _listener(
    label: str, method: Callable[..., Any], offered: tuple[str, ...]
) -> Callable[[Mapping[str, Any]], Any]:
    positional, named, takes_all = [], [], False
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError) as error:
        raise HookError(f"{label} has no readable signature; wrap it in a function") from error
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.name not in offered:
            raise HookError(
                f"{label} asks for {parameter.name!r}, which this event does not offer"
                f"{did_you_mean(parameter.name, offered)}; it offers {', '.join(offered)}"
            )
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        else:
            named.append(parameter.name)
    names = [name for name in offered if name not in positional] if takes_all else named

    def call(offers: Mapping[str, Any]) -> Any:
        return method(*[offers[name] for name in positional], **{k: offers[k] for k in names})

    return call
