"""Where the value of a setting comes from."""

import dataclasses

__all__ = ["COMMAND_LINE", "DEFAULT", "Origin"]


@dataclasses.dataclass(frozen=True)
class Origin:
    """A layer, and the line if it is a file; prints as ``configs/my.yaml:7``."""

    layer: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.layer}:{self.line}" if self.line else self.layer

    def at(self, key: object) -> "Origin":
        """The same layer at the line of a key, if the key has one."""
        line = getattr(key, "line", 0)
        return dataclasses.replace(self, line=line) if line else self


DEFAULT = Origin("default")
COMMAND_LINE = Origin("command line")
