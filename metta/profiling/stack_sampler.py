"""`StackSampler`: samples the stack of a thread many times a second."""

import sys
import threading
from collections import Counter
from types import FrameType

__all__ = ["StackSampler"]

_ROOT = "metta.rl.loop:run_training"
"""Frames above it belong to the program that started training, and are left out."""


class StackSampler:
    """Counts the stacks of the thread that created it.

        sampler = StackSampler()
        sampler.start(); work(); sampler.stop()
        sampler.folded()

    A sample waits for the GIL, so time in long C calls is counted where they return.
    """

    def __init__(self, seconds: float = 0.005) -> None:
        self.seconds = seconds
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run, name="metta-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; may be called more than once."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._over.wait(self.seconds):
            frame = sys._current_frames().get(self._watched)
            if frame is not None:
                self.stacks[_stack_of(frame)] += 1

    def folded(self) -> str:
        """A line ``frame;frame;frame count`` per stack, as flame graph tools read them."""
        return "".join(f"{';'.join(stack)} {count}\n" for stack, count in self.stacks.items())


def _stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """Names of functions, outermost first."""
    names = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}:{frame.f_code.co_qualname}".replace(";", ",").replace(" ", ""))
        if names[-1] == _ROOT:
            break
        frame = frame.f_back
    return tuple(reversed(names))
