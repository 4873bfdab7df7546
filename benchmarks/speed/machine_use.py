"""What a tree of processes and the whole machine use, as Linux tells in /proc."""

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import NamedTuple

from metta.errors import ConfigError

__all__ = ["MachineUse", "ProcessTree", "machine_use", "parse_machine_use", "require_proc"]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

# places in /proc/PID/stat, counted after the name in brackets
_STATE, _USER, _SYSTEM, _START, _RESIDENT = 0, 11, 12, 19, 21


class MachineUse(NamedTuple):
    """Processor seconds of all cores since the machine began."""

    busy: float
    """Spent for processes, here or in a virtual machine below."""
    stolen: float
    """Wanted, but taken by other virtual machines."""


def parse_machine_use(text: str, ticks: int = _TICKS) -> MachineUse:
    """From the text of ``/proc/stat``, whose first line counts ticks of all cores together."""
    words = text.split("\n", 1)[0].split()
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, words[1:9])
    busy = user + nice + system + interrupts + soft_interrupts
    return MachineUse(busy / ticks, stolen / ticks)


def machine_use() -> MachineUse:
    """As it stands now."""
    return parse_machine_use((_PROC / "stat").read_text())


def require_proc() -> None:
    """Refuse to measure where nobody can say what was used."""
    if not (_PROC / "stat").is_file():
        raise ConfigError(
            "processor time of other processes is read from /proc, which only Linux has; measure there"
        )


class ProcessTree:
    """A process and all that it started, also those whose parent has ended since.

        tree = ProcessTree(process.pid)
        cpu_seconds, resident_bytes = tree.look()

    Processes that come and go between two looks are missed. Threads may share a tree.
    """

    def __init__(self, pid: int) -> None:
        self._members: dict[int, int] = {}
        """Process -> when it started, because numbers are used again."""
        self._seconds: dict[tuple[int, int], float] = {}
        self._root = pid
        self._lock = threading.RLock()

    def look(self) -> tuple[float, int]:
        """Processor seconds of all, ended ones too, and memory of those that live."""
        with self._lock:
            return self._look()

    def _look(self) -> tuple[float, int]:
        waiting, seen, resident = [self._root, *self._members], set(), 0
        while waiting:
            pid = waiting.pop()
            fields = None if pid in seen else _fields(pid)
            if fields is None or self._members.get(pid, fields[_START]) != fields[_START]:
                continue
            seen.add(pid)
            self._members[pid] = fields[_START]
            spent = (fields[_USER] + fields[_SYSTEM]) / _TICKS
            self._seconds[pid, fields[_START]] = spent
            resident += fields[_RESIDENT] * _PAGE
            waiting += _children(pid)
        return sum(self._seconds.values()), resident

    def lives(self) -> bool:
        """Whether the process that started the others has not ended."""
        fields = _fields(self._root)
        return fields is not None and fields[_START] == self._members.get(self._root)

    def kill(self) -> None:
        """End whatever of the tree still lives."""
        with self._lock:
            self._look()
            for pid, started in self._members.items():
                fields = _fields(pid)
                if fields is not None and fields[_START] == started:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _fields(pid: int) -> list[int] | None:
    """Numbers of a process; None where it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[_STATE] == "Z" else [0, *map(int, words[1:])]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found
