"""The end of a process: wait for it, or kill the process."""

import contextlib
import os
import select
import signal
import time

__all__ = ["ProcessEnd"]

_NOTHING = -1
_LOOK_SECONDS = 0.01


class ProcessEnd:
    """Detects when a process has ended, and ends it together with its process group.

    Linux's process descriptors are used where there are any: they never mean another process that got
    the same number, and need no parent that reports the end. Elsewhere `otherwise` is waited for, or the
    process number looked up.
    """

    def __init__(self, pid: int, otherwise: int = _NOTHING) -> None:
        self._pid = pid
        self._own = _NOTHING
        if hasattr(os, "pidfd_open"):
            # it may have ended already, and the kernel may be too old
            with contextlib.suppress(OSError):
                self._own = os.pidfd_open(pid)
        self.descriptor = otherwise if self._own == _NOTHING else self._own
        """Can be read from once the process has ended."""

    def within(self, seconds: float) -> bool:
        """Wait for the end; False: it did not end in time."""
        if self.descriptor == _NOTHING:
            return self._looks_ended_within(seconds)
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(max(0.0, seconds) * 1000.0))

    def _looks_ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            while True:
                os.kill(self._pid, 0)
                if time.monotonic() > deadline:
                    return False
                time.sleep(_LOOK_SECONDS)
        except ProcessLookupError:
            return True

    def kill(self) -> None:
        """Kill the process, also where it is stopped, and every process of the group that it leads."""
        with contextlib.suppress(ProcessLookupError):
            if self._own != _NOTHING:
                signal.pidfd_send_signal(self._own, signal.SIGKILL)
            elif not self.within(0):
                os.kill(self._pid, signal.SIGKILL)
        # there is no such group where it ended before making one
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor."""
        if self._own != _NOTHING:
            os.close(self._own)
        self._own = self.descriptor = _NOTHING
