"""Ctrl-C, SIGTERM and SIGHUP end a run at the end of its epoch; a second one ends it at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from metta.rl.training_state import TrainerState

__all__ = ["StopSignals", "stopping_on_signals"]


class StopSignals:
    """Which signal asked a run to stop."""

    def __init__(self) -> None:
        self.received: int | None = None


@contextmanager
def stopping_on_signals(state: TrainerState) -> Iterator[StopSignals]:
    """Turn SIGINT, SIGTERM and the end of the terminal into a requested stop while the block runs.

    A second one interrupts at once: `KeyboardInterrupt` with its number.

    Hooks find the signal in ``state.shared["stop_signal"]``. Outside the main thread, where Python cannot
    handle signals, nothing changes. A signal that the program ignores stays ignored.
    """
    signals = StopSignals()
    state.shared.pop("stop_signal", None)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def handle(number: int, _: FrameType | None) -> None:
        if signals.received is not None:
            raise KeyboardInterrupt(number)
        signals.received = state.shared["stop_signal"] = number
        state.request_stop(f"{signal.Signals(number).name} was received")

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
