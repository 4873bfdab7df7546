"""`BackgroundSave`: training continues while a checkpoint is written."""

import threading
from collections.abc import Callable

from metta.agent.policy_record import PolicyRecord

__all__ = ["BackgroundSave"]


class BackgroundSave:
    """At most one save at a time, in a separate thread.

        saves = BackgroundSave()
        saves.start(lambda: manager.commit(pending))
        ...
        record = saves.take()            # None: no save ended since the last call

    `take` raises errors of the thread. The thread is not a daemon: a process that ends
    waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._record: PolicyRecord | None = None
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait until the running save is done; `take` still returns its result."""
        if self._thread is not None:
            self._thread.join()

    def start(self, write: Callable[[], PolicyRecord]) -> None:
        """Begin a save; the one before must have been taken."""
        assert self._thread is None, "take() comes first"

        def run() -> None:
            try:
                self._record = write()
            except BaseException as error:  # noqa: BLE001  # raised by take, in the thread that trains
                self._error = error

        self._thread = threading.Thread(target=run, name="metta-save")
        self._thread.start()

    def take(self, *, wait: bool = False) -> PolicyRecord | None:
        """The result of the running save; None if there is none, or if it is not done yet."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        record, error = self._record, self._error
        self._thread = self._record = self._error = None
        if error is not None:
            raise error
        return record
