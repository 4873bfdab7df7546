"""A hook that hears every event of an epoch, before or after all others."""

from collections.abc import Callable

__all__ = ["FIRST", "LAST", "EventEdge"]

FIRST, LAST = -(10**9), 10**9
"""Orders below and above those of all other hooks."""


class EventEdge:
    """Passes the name of each event on.

    trainer.add_hook(EventEdge(FIRST, begin))
    trainer.add_hook(EventEdge(LAST, end))
    """

    def __init__(self, order: int, hear: Callable[[str], None]) -> None:
        self.order, self._hear = order, hear

    def on_epoch_start(self) -> None:
        """Before the rollout."""
        self._hear("on_epoch_start")

    def on_rollout_start(self) -> None:
        """Collecting begins."""
        self._hear("on_rollout_start")

    def on_rollout_end(self) -> None:
        """Collecting is over, learning begins."""
        self._hear("on_rollout_end")

    def on_update_end(self) -> None:
        """Learning is over."""
        self._hear("on_update_end")

    def on_epoch_end(self) -> None:
        """The epoch is counted."""
        self._hear("on_epoch_end")

    def on_checkpoint(self) -> None:
        """A checkpoint is committed."""
        self._hear("on_checkpoint")
