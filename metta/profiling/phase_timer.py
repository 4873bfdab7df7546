"""`PhaseTimer`: the seconds of each phase of an epoch."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metta.timing import Stopwatch

__all__ = ["FIRST", "LAST", "EventEdge", "PhaseTimer"]

FIRST, LAST = -(10**9), 10**9
"""Orders before and after those of all other hooks."""
_EPOCH_EVENTS = (
    "on_epoch_start", "on_rollout_start", "on_rollout_end",
    "on_update_end", "on_epoch_end", "on_checkpoint",
)  # fmt: skip
_ENDS = {"on_rollout_end": "rollout", "on_update_end": "learn"}
_BEGINS = {"on_rollout_start": "rollout", "on_rollout_end": "learn"}
_BESIDE = "collect_ahead"
"""Seconds of other processes, which this one does not spend."""
_ELSEWHERE = ("collect", "wait", "transfer")


class EventEdge:
    """A hook that receives every event of an epoch, before or after all others, and passes its name on.

    trainer.add_hook(EventEdge(FIRST, begin))
    trainer.add_hook(EventEdge(LAST, end))
    """

    def __init__(self, order: int, call: Callable[[str], None]) -> None:
        self.order = order
        for event in _EPOCH_EVENTS:
            setattr(self, event, functools.partial(call, event))


class PhaseTimer:
    """Times the parts of a run from outside: by hooks, and by the methods of their protocols.

        timer = PhaseTimer()
        timer.watch(collector.vec_env, ("send", "recv"), "environment")
        timer.watch(collector.actor, ("act",), "inference")
        for hook in timer.hooks(): trainer.add_hook(hook)
        timer.begin(); ...; timer.end()
        timer.phases()

    Where environment and actor run together without Python, neither can be timed separately, and their
    phases are one.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._watch = Stopwatch(clock)
        self._calls: dict[str, list[float]] = {}
        self._called: set[str] = set()
        self._source: Callable[[], Mapping[str, float]] = dict
        self._before: Mapping[str, float] = {}
        self._inside: dict[str, dict[str, float]] = {"rollout": {}, "learn": {}}
        self.is_on = False

    def watch(self, part: Any, methods: Sequence[str], phase: str) -> bool:
        """Add the time in a part's methods to a phase of collecting; False if it cannot be watched.

        Only the methods of this object are replaced, not those of its class.
        """
        self._calls.setdefault(phase, [])
        try:
            for name in methods:
                setattr(part, name, self._timed(getattr(part, name), phase))
        except AttributeError:  # no such method, or an object that takes no attributes
            return False
        return True

    def count(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Read what the run itself measures inside of rollouts and updates: seconds by name, so far."""
        self._source = source

    def was_called(self, phase: str) -> bool:
        """Whether a method of this phase was called, timed or not."""
        return phase in self._called or bool(self._calls.get(phase))

    def _timed(self, method: Callable[..., Any], phase: str) -> Callable[..., Any]:
        clock, spent = self._clock, self._calls[phase]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                self._called.add(phase)
                return method(*args, **kwargs)
            started = clock()
            try:
                return method(*args, **kwargs)
            finally:
                spent.append(clock() - started)

        return call

    def hooks(self) -> tuple[EventEdge, EventEdge]:
        """Two hooks that receive every event, before and after all others."""
        return EventEdge(FIRST, self._before_hooks), EventEdge(LAST, self._after_hooks)

    def begin(self) -> None:
        """Start timing at the beginning of an epoch."""
        self.is_on = True
        self._watch.start("whole")
        self._watch.start("hooks")

    def end(self) -> None:
        """Stop timing."""
        self._watch.stop_all()
        self.is_on = False

    def _before_hooks(self, event: str) -> None:
        if self.is_on:
            self._watch.stop(_ENDS.get(event, ""))
            self._watch.start("hooks")
            if event in _ENDS:
                self._take(self._inside[_ENDS[event]])

    def _after_hooks(self, event: str) -> None:
        if self.is_on:
            self._watch.stop("hooks")
            if event in _BEGINS:
                self._before = dict(self._source())
                self._watch.start(_BEGINS[event])

    def _take(self, inside: dict[str, float]) -> None:
        for name, seconds in self._source().items():
            inside[name] = inside.get(name, 0.0) + seconds - self._before.get(name, 0.0)

    def ahead_seconds(self) -> float:
        """Seconds in which rollouts were collected elsewhere while this process learned."""
        return self._inside["rollout"].get(_BESIDE, 0.0)

    def phases(self) -> dict[str, float]:
        """Seconds by phase, which add up to those between `begin` and `end`."""
        spent = self._watch.elapsed_all()
        inside = dict(self._inside["rollout"])
        inside.pop(_BESIDE, None)
        learned = self._inside["learn"].get("reduce", 0.0)
        whole, rollout = spent.get("whole", 0.0), spent.get("rollout", 0.0)
        seen = {phase: sum(calls) for phase, calls in sorted(self._calls.items()) if calls}
        left = _rest_of_rollout(seen.keys() & {"environment", "inference"})
        if "collect" in inside:
            left = "advantages and statistics"
            seen |= {name: inside.get(name, 0.0) for name in _ELSEWHERE}
        reduced = inside.get("reduce", 0.0)
        found = {
            **seen,
            left: rollout - sum(seen.values()) - reduced,
            **({"reduce": reduced + learned} if "reduce" in inside else {}),
            "learn": spent.get("learn", 0.0) - learned,
            "hooks": spent.get("hooks", 0.0),
        }
        return {**found, "rest": whole - sum(found.values())}


def _rest_of_rollout(seen: set[str]) -> str:
    """Name of the part of collecting that could not be timed separately."""
    if not seen:
        return "fused rollout (environment + inference)"
    if len(seen) == 1:
        return "inference and transfer" if "environment" in seen else "environment and transfer"
    return "transfer"
