"""What a row of metrics is, and what takes rows in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MetricRow", "Sink"]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Numbers of one moment of a run."""

    agent_step: int
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_late: bool = field(default=False, compare=False)
    """Whether these are scores that came after rows of later epochs."""


class Sink(Protocol):
    """Writes rows to one place.

    It opens at the first `write`; after `close` another `write` opens it again and continues. A `write`
    that raises has written nothing, so the row may be written again.

    A sink may have a method ``rewrite(continuation)`` besides: a run continues, perhaps from before its
    last row; see `metta.loggers.events.history.Continuation`. What it returns is shown to the user.
    Where it has an attribute `takes_constants` that is true, settings come to it as a row of their own when
    training begins; tables of rows leave them out.
    """

    name: str
    """Names the sink in messages and files."""

    def write(self, row: MetricRow) -> None:
        """Take one row in."""
        ...

    def flush(self) -> None:
        """Make what was written visible to others."""
        ...

    def close(self) -> None:
        """Release everything; may be called more than once."""
        ...
