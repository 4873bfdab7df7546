"""Stacks as a flame graph: one self-contained SVG file."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

__all__ = ["flame_graph"]

_WIDTH, _ROW, _TOP = 1200.0, 18, 40
_MIN_SIZE = 0.4
"""Pixels below which a frame is left out."""
_LETTER = 6.6
"""Width of a letter in pixels, about."""
_HUES = {"metta": 210, "torch": 20, "numpy": 50, "gymnasium": 130}


@dataclass
class _Frame:
    count: int = 0
    below: dict[str, "_Frame"] = field(default_factory=dict)


def flame_graph(stacks: Mapping[tuple[str, ...], int], title: str) -> str:
    """An SVG: the width of a frame is its share of the samples; hovering shows its name and share."""
    root = _Frame()
    for stack, count in stacks.items():
        root.count += count
        frame = root
        for name in stack:
            frame = frame.below.setdefault(name, _Frame())
            frame.count += count
    depth = max(map(len, stacks), default=0)
    height = _TOP + _ROW * (depth + 1)
    rows = "\n".join(_boxes("all", root, 0.0, 0, root.count or 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:.0f}" height="{height}" '
        f'viewBox="0 0 {_WIDTH:.0f} {height}" font-family="monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="8" y="22" font-size="15">{escape(title)}</text>\n{rows}\n</svg>\n'
    )


def _boxes(name: str, frame: _Frame, left: float, depth: int, total: int) -> Iterator[str]:
    """A box for a frame, and those that it called below it, widest first."""
    width = frame.count / total * _WIDTH
    if width < _MIN_SIZE:
        return
    top = _TOP + depth * _ROW
    share = f"{name}: {frame.count:,} samples, {frame.count / total:.1%}"
    letters = int((width - 6) / _LETTER)
    shown = name.partition(":")[2] or name
    text = shown if len(shown) <= letters else f"{shown[: letters - 1]}~" if letters > 3 else ""
    yield (
        f"<g><title>{escape(share)}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 1}" '
        f'fill="{_color(name)}"/>'
        f'<text x="{left + 3:.1f}" y="{top + 13}">{escape(text)}</text></g>'
    )
    for below, child in sorted(frame.below.items(), key=lambda item: -item[1].count):
        yield from _boxes(below, child, left, depth + 1, total)
        left += child.count / total * _WIDTH


def _color(name: str) -> str:
    """A hue for each library, a shade for each function."""
    library = name.partition(".")[0].partition(":")[0]
    light = 62 + zlib.crc32(name.encode()) % 18
    return f"hsl({_HUES.get(library, 280)}, {60 if library in _HUES else 10}%, {light}%)"
