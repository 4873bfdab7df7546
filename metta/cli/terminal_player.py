"""A replay in the terminal: drawn in place, moment after moment, or printed where there is none."""

import re
import shutil
import sys
import time
import unicodedata
from typing import TYPE_CHECKING

from metta.cli.tables import say
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.replays.replay import Replay, ReplayInfo

__all__ = ["check_speed", "play_in_terminal"]

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_MARGIN = 2
"""Lines of a terminal that are left for captions."""
_MAX_SPEED = 1000


def check_speed(speed: float) -> None:
    """Refuse a speed that cannot be shown."""
    if not 0 < speed <= _MAX_SPEED:
        raise ConfigError(f"--speed {speed:g}; give up to {_MAX_SPEED} steps per second")


def play_in_terminal(replay: "Replay", moments: range, *, speed: float, color: bool) -> None:
    """Show moments of a replay, `speed` of them in a second."""
    from metta.replays.video import captioned_texts

    is_terminal = sys.stdout.isatty()
    say(_headline(replay.info))
    if replay.info.kind == "frames" and not is_terminal:
        say("this replay has images: write them with -o FILE.mp4 or FILE.gif, or use a terminal")
        return
    screen, lines = shutil.get_terminal_size()
    columns = screen
    if replay.info.kind == "frames":
        if not color:
            raise ConfigError(
                "images cannot be shown without colour; leave --no-color out, or use -o"
            )
        columns = _fitting_columns(replay, screen, lines - _MARGIN)
    drawn = 0
    styled = is_terminal and color
    for caption, text in captioned_texts(replay, moments, color=styled, width=columns):
        if is_terminal:
            fitting = "\n".join(_cut(line, screen) for line in text.split("\n"))
            drawn = _redraw(f"{fitting}\n{caption[: screen - 1]}", drawn)
            time.sleep(1.0 / speed)
        else:
            say(f"--- {caption}\n{text}")


def _fitting_columns(replay: "Replay", columns: int, lines: int) -> int:
    """How wide an image may be so that its half blocks also fit the height."""
    height, width, _ = replay.frame(0).shape
    return max(1, min(columns, 2 * max(lines, 1) * int(width) // int(height)))


def _cut(line: str, columns: int) -> str:
    """The part of a line that a terminal does not wrap; colour codes all stay, since they take no space."""
    kept, left = [], columns
    for piece in _STYLE.split(line):
        if _STYLE.fullmatch(piece):
            kept.append(piece)
            continue
        for sign in piece:
            left -= _columns_of(sign)
            if left >= 0:
                kept.append(sign)
    return "".join(kept)


def _columns_of(sign: str) -> int:
    """How many columns a terminal uses for a character."""
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _redraw(text: str, drawn: int) -> int:
    """Overwrite the last `drawn` lines; returns how many lines were written."""
    back = f"\x1b[{drawn}F\x1b[J" if drawn else ""
    sys.stdout.write(f"{back}{text}\n")
    sys.stdout.flush()
    return text.count("\n") + 1


def _headline(info: "ReplayInfo") -> str:
    parts = [info.simulation or info.env]
    parts += [] if info.epoch is None else [f"epoch {info.epoch:,}"]
    parts += [f"{info.num_agents} agents"] if info.num_agents > 1 else []
    parts += [f"{info.num_steps:,} steps", f"return {shown_number(info.mean_return)}", info.ended]
    return printable(", ".join(parts))
