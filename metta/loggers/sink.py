"""A record of metrics, and the sinks that write records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["MetricRow", "Sink"]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A record: the metrics of one report."""

    agent_step: int
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_late: bool = field(default=False, compare=False)
    """Whether these are scores that came after records of later epochs."""


class Sink(Protocol):
    """Writes records to one place.

    It opens at the first `write`; after `close` another `write` opens it again and continues. A `write`
    that raises has written nothing, so the record may be written again.

    A sink may also have a method ``rewrite(continuation)``, called when a run continues, perhaps from
    before its last record; see `metta.loggers.events.history.Continuation`. What it returns is shown to the
    user. A sink with a true attribute `takes_constants` gets the settings as a separate record when
    training begins.
    """

    name: str
    """Names the sink in messages and files."""

    def write(self, row: MetricRow) -> None:
        """Write one record."""
        ...

    def flush(self) -> None:
        """Make what was written visible to others."""
        ...

    def close(self) -> None:
        """Release everything; may be called more than once."""
        ...
