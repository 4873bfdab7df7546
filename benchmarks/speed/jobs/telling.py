"""How a job hears what to do, and says how far it is."""

import json
import sys
import time
from typing import Any

__all__ = ["report", "report_result", "told"]


def told() -> dict[str, Any]:
    """What the one argument of the process says."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def report(steps: int) -> None:
    """One line per iteration: steps so far, and a clock that all processes share."""
    print(f"{steps} {time.monotonic():.6f}", flush=True)


def report_result(name: str, number: float) -> None:
    """A number of the job's own."""
    print(f"result {name} {number:.9g}", flush=True)
