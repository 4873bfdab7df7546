"""A replay for people: every moment as text for a terminal, or as an image."""

import math
import re
from collections.abc import Callable

import numpy as np

from metta.envs.grid.render import draw_rgb, draw_text
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.replays.replay import Replay
from metta.untrusted.text import printable, printable_lines

__all__ = ["caption_of", "half_blocks", "image_of", "shown_text", "text_of"]

_STYLE = re.compile(r"\x1b\[[0-9;]{0,20}m")
"""Colours and styles: the only control sequences of a file's text that reach a terminal."""
_PIECES = re.compile(rf"({_STYLE.pattern})")
_MAX_NUMBERS = 16
_MAX_AGENTS = 16
_MAX_SCALE = 64
_MAX_IMAGE_BYTES = 256 * 2**20
_MAX_ROWS = 2000
"""Limit on pixels in a terminal: an image one pixel wide must not become millions of lines."""
_CELL_PIXELS = 8
_READABLE_WIDTH, _MAX_READABLE_HEIGHT = 256, 1024
_END = "\x1b[0m"


def text_of(replay: Replay, moment: int, *, color: bool = True, width: int = 80) -> str:
    """One moment as lines of text; images become blocks of up to `width` characters in a line.

    Control characters in texts from a file are shown as codes, except colours.
    """
    draw: Callable[[], str] = {
        "grid": lambda: draw_text(replay.world(moment), color=color),
        "frames": lambda: half_blocks(replay.frame(moment), width),
        "text": lambda: shown_text(replay.text(moment), color=color),
        "observations": lambda: _numbers_of(replay, moment),
    }[replay.info.kind]
    return draw()


def caption_of(replay: Replay, moment: int, totals: np.ndarray) -> str:
    """One line about a moment; `totals` ``[A]`` are the rewards up to it."""
    line = f"step {moment} of {replay.info.num_steps}"
    if moment > 0:
        actions = replay.actions(moment - 1)[:_MAX_AGENTS]
        line += f"  actions {_brief(actions)}  rewards {_brief(replay.rewards(moment - 1))}"
    mine = totals[np.array(replay.info.evaluated, bool)]
    return f"{line}  return {shown_number(float(mine.mean()) if len(mine) else 0.0)}"


def image_of(replay: Replay, moment: int, *, scale: int | None = None) -> np.ndarray:
    """One moment as an image ``[H, W, 3]`` uint8; a cell of a grid or a pixel is `scale` pixels wide.

    None: at least 8 for grids and 1 for images, more for small ones, so that they are 256 pixels wide.
    Texts and observations have none, and images of more than 256 MiB are not drawn: `ConfigError`.
    """
    kind = replay.info.kind
    if kind not in ("grid", "frames"):
        raise ConfigError(
            f"a replay of kind {kind!r} has no images; write it as .txt, or play it in a terminal"
        )
    height, width = replay.tracks["cells" if kind == "grid" else "frames"].shape[:2]
    size = scale or _readable_scale(kind, height, width)
    if not 1 <= size <= _MAX_SCALE:
        raise ConfigError(f"scale={scale} pixels; use 1 to {_MAX_SCALE}")
    if height * width * size**2 * 3 > _MAX_IMAGE_BYTES:
        # a replay's arrays are small enough for a scale of 1
        largest = math.isqrt(_MAX_IMAGE_BYTES // (height * width * 3))
        raise ConfigError(
            f"scale={size} would make images of {height * size} x {width * size} pixels, which are more "
            f"than {_MAX_IMAGE_BYTES} bytes; use 1 to {largest}"
        )
    if kind == "grid":
        return draw_rgb(replay.world(moment), size)
    return replay.frame(moment).repeat(size, axis=0).repeat(size, axis=1)


def _readable_scale(kind: str, height: int, width: int) -> int:
    """Pixels for each cell or pixel, so that people can see a small picture; a tall one is not blown up."""
    least = _CELL_PIXELS if kind == "grid" else 1
    readable = min(math.ceil(_READABLE_WIDTH / width), max(1, _MAX_READABLE_HEIGHT // height))
    return min(max(least, readable), _MAX_SCALE)


def half_blocks(image: np.ndarray, width: int) -> str:
    """An image ``[H, W, 3]`` uint8 as characters whose upper and lower halves have separate colours."""
    columns = max(1, min(width, image.shape[1]))
    rows = max(2, round(image.shape[0] * columns / image.shape[1]))
    rows = min(rows + rows % 2, _MAX_ROWS)
    down = np.arange(rows) * image.shape[0] // rows
    across = np.arange(columns) * image.shape[1] // columns
    small = image[down[:, None], across]
    lines = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        signs = (
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper, lower, strict=True)
        )
        lines.append("".join(signs) + _END)
    return "\n".join(lines)


def shown_text(text: str, *, color: bool = True) -> str:
    """A text of unknown origin, for a terminal: colours stay if wanted, other controls become codes."""
    if not color:
        text = _STYLE.sub("", text)
    parts = [
        part if _STYLE.fullmatch(part) else printable_lines(part) for part in _PIECES.split(text)
    ]
    has_style = any(map(_STYLE.fullmatch, parts))
    return "".join(parts).rstrip("\n") + (_END if has_style else "")


def _numbers_of(replay: Replay, moment: int) -> str:
    lines = []
    for leaf in replay.leaves:
        observed = replay.observation(leaf, moment)
        for agent, values in enumerate(observed[:_MAX_AGENTS]):
            name = printable(leaf) + (f" of agent {agent}" if len(observed) > 1 else "")
            lines.append(f"{name}: {_brief(values)}")
        if len(observed) > _MAX_AGENTS:
            lines.append(f"... and {len(observed) - _MAX_AGENTS} more agents")
    return "\n".join(lines)


def _brief(values: np.ndarray) -> str:
    flat = values.reshape(-1)
    shown = " ".join(f"{value:.4g}" for value in flat[:_MAX_NUMBERS].astype(np.float64).tolist())
    return shown + (f" ... ({flat.size} numbers)" if flat.size > _MAX_NUMBERS else "")
