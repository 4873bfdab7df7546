"""Is a process still there?"""

import contextlib
import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # the state follows the name, which is in parentheses; Z: dead, only not yet waited for
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def all_gone(pids: list[int], within_seconds: float = 20.0) -> bool:
    """Whether none is left; the time only keeps a failing test from waiting for ever."""
    deadline = time.monotonic() + within_seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
