"""`BackgroundSave`: training continues while a checkpoint is written."""

import threading
from collections.abc import Callable

from metta.agent.policy_record import PolicyRecord

__all__ = ["BackgroundSave"]


class BackgroundSave:
    """At most one save at a time, in a thread of its own.

        saves = BackgroundSave()
        saves.start(lambda: manager.commit(pending))
        ...
        record = saves.take()            # None: nothing came to its end since the last call

    What goes wrong in the thread is raised by `take`. The thread is no daemon: a process that ends
    waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._record: PolicyRecord | None = None
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait until the save under way is done; `take` still tells what it came to."""
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
        """What the save under way came to; None where there is none, or where it is not done yet."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        record, error = self._record, self._error
        self._thread = self._record = self._error = None
        if error is not None:
            raise error
        return record
