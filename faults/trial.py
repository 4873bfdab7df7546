"""One fault that was injected, and what came of it."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

OK = "ok"


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was done and what was found; `outcome` is "ok" or a few words on what went wrong."""

    campaign: str
    seed: int
    point: str
    """Where the fault fell, e.g. "fsync #3" or "inside a save"."""
    outcome: str
    digest: str | None = None
    """Of the state that was found afterwards, where there is one."""
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Campaign(Protocol):
    """A module's `trials`: at least `count` trials (or all there are), derived from `seed`, in `folder`."""

    def __call__(self, count: int, seed: int, folder: Path) -> Iterator[Trial]: ...
