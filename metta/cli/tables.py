"""Formatted tables and sizes, and the one function with which commands print."""

from collections.abc import Sequence
from typing import TextIO

from metta.untrusted.text import printable, printable_lines

__all__ = ["say", "shown_bytes", "table"]


def say(
    text: str = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Print `printable` lines, so that no text can control the terminal."""
    print(printable_lines(text), end=end, file=file, flush=flush)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as `printable` lines with columns of equal width."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
             for row in shown]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def shown_bytes(count: float) -> str:
    """A size in the unit that suits it, e.g. ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
