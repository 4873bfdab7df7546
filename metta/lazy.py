"""Names that are imported when they are first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, homes: Mapping[str, str], elsewhere: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose names live in other modules.

    __getattr__, __dir__ = lazy_exports(__name__, {"Policy": "metta.agent.policy"})

    `elsewhere` has names of other libraries, with what to write here.
    """

    def load(name: str) -> Any:
        if name not in homes:
            instead = (elsewhere or {}).get(name)
            hint = f"; write {instead}" if instead else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted(homes)

    return load, names
