"""What every script in this folder is told, and how it says how far it is.

These scripts run under interpreters that have no metta, so they import nothing of it.
"""

import json
import sys
import time
from types import SimpleNamespace
from typing import Any


def read_settings() -> Any:
    """Settings of the workload and details of the row, from the one argument of the process."""
    told = json.loads(sys.argv[1])
    settings = {**told.pop("settings", {}), **told}
    if "horizon" in settings:
        settings["batch"] = settings["num_envs"] * settings["horizon"]
        settings["minibatch"] = settings["batch"] // settings["num_minibatches"]
        # whole iterations only
        settings["iterations"] = max(1, settings["steps"] // settings["batch"])
    return SimpleNamespace(**{"vector": False, "pong": False, **settings})


def report(steps: int) -> None:
    """One line per iteration: steps so far, and a clock that all processes share."""
    print(f"{steps} {time.monotonic():.6f}", flush=True)
