"""`Stopwatch`: how a run spends its time."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds by name, in total and since the last lap; timers run independently.

        timer = Stopwatch()
        with timer("rollout"):
            collect()
        timer.lap_all()["rollout"]

    Starting a running timer and stopping a stopped one change nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._lapped: dict[str, float] = {}
        self._sources: list[tuple[Callable[[], Mapping[str, float]], Mapping[str, float]]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a `with` block."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)

    def start(self, name: str) -> None:
        """Start a timer."""
        self._spent.setdefault(name, 0.0)
        self._started.setdefault(name, self._clock())

    def stop(self, name: str) -> None:
        """Stop a timer."""
        started = self._started.pop(name, None)
        if started is not None:
            self._spent[name] += self._clock() - started

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def include(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Count what this function measures from now on too; it gives seconds by name."""
        self._sources.append((source, dict(source())))

    def stop_all(self) -> None:
        """Stop every timer."""
        for name in list(self._started):
            self.stop(name)

    def elapsed(self, name: str) -> float:
        """Seconds that a timer has run so far; 0 for one that never did."""
        started = self._started.get(name)
        running = 0.0 if started is None else self._clock() - started
        return self._spent.get(name, 0.0) + running

    def elapsed_all(self) -> dict[str, float]:
        """Seconds of every timer, in the order in which they first started."""
        found = {name: self.elapsed(name) for name in self._spent}
        for source, before in self._sources:
            for name, seconds in source().items():
                found[name] = found.get(name, 0.0) + seconds - before.get(name, 0.0)
        return found

    def lap_all(self) -> dict[str, float]:
        """Seconds of every timer since the last call; running timers keep running."""
        now = self.elapsed_all()
        lap = {name: seconds - self._lapped.get(name, 0.0) for name, seconds in now.items()}
        self._lapped = now
        return lap
