"""Text of unknown origin, made safe to print."""

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """A text of unknown origin on one line; control characters are written as codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """A text of unknown origin with its lines, each `printable`."""
    return "\n".join(map(printable, text.split("\n")))
