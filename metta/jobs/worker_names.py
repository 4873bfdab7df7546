"""Names of workers: they say which process it is, so that its end can be found out on the same machine."""

import contextlib
import re
import socket

import psutil

from metta.jobs.ledger import JobLedger

__all__ = ["has_ended", "release_dead", "worker_name"]

_PID = re.compile("[0-9]{1,9}")
_CLOCK_SECONDS = 5.0
"""The start of a process is reckoned from the clock, which is set now and then."""


def worker_name(pid: int) -> str:
    """``host:pid:start``; the start tells a process from a later one with the same number."""
    start = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        start = psutil.Process(pid).create_time()
    return f"{socket.gethostname()}:{pid}:{start:.2f}"


def has_ended(name: str) -> bool:
    """Whether a worker is known to have ended; False for one on another machine."""
    host, pid, start = (*name.split(":"), "", "")[:3]
    if host != socket.gethostname() or not _PID.fullmatch(pid):
        return False
    try:
        process = psutil.Process(int(pid))
        is_same = abs(process.create_time() - float(start)) <= _CLOCK_SECONDS
        return not is_same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError):  # it belongs to another user; this is no name of a worker
        return False


def release_dead(ledger: JobLedger) -> int:
    """End the leases of this machine's workers that have ended; returns how many jobs they held."""
    return sum(ledger.abandon(name) for name in ledger.holders() if has_ended(name))
