"""Waiting for a database that is away."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

from metta.errors import DatabaseUnavailableError, MettaWarning

__all__ = ["patiently", "pauses"]

Answer = TypeVar("Answer")


def pauses(first: float = 0.1, longest: float = 5.0) -> Iterator[float]:
    """Seconds between tries: twice as many each time, up to the longest."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)


def patiently(call: Callable[[], Answer], is_over: Callable[[], bool] = lambda: False) -> Answer:
    """What the call returns, which is made again while the database is away, unless `is_over`.

    It warns once when the database is away, and once when it is back.
    """
    is_away = False
    for pause in pauses():
        try:
            answer = call()
        except DatabaseUnavailableError as error:
            if is_over():
                raise
            if not is_away:
                is_away = True
                _warn(f"{error}; it is tried again until it works")
            time.sleep(pause)
            continue
        break
    if is_away:
        _warn("the database can be reached again")
    return answer


def _warn(text: str) -> None:
    """Each time: `warnings.warn` says the same text once only."""
    warnings.warn_explicit(text, MettaWarning, __file__, 0)
