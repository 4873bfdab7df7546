"""A grid world as text or as an image, from a snapshot of it."""

from dataclasses import dataclass

import numpy as np

from metta.envs.grid.layout import Cell
from metta.errors import ConfigError

__all__ = ["WorldView", "draw_rgb", "draw_text"]

_MAX_SCALE = 64
_SIGNS = {
    Cell.EMPTY: ".",
    Cell.WALL: "#",
    Cell.RESOURCE: "*",
    Cell.DEPOT: "D",
    Cell.DOOR: "+",
    Cell.KEY: "k",
    Cell.AGENT: "a",
    Cell.LOADED_AGENT: "A",
}
_RGB = {
    Cell.EMPTY: (24, 26, 31),
    Cell.WALL: (92, 99, 112),
    Cell.RESOURCE: (152, 195, 121),
    Cell.DEPOT: (97, 175, 239),
    Cell.DOOR: (190, 110, 60),
    Cell.KEY: (229, 192, 123),
    Cell.AGENT: (224, 108, 117),
    Cell.LOADED_AGENT: (198, 120, 221),
}
_END = "\x1b[0m"


@dataclass(frozen=True, eq=False)
class WorldView:
    """One world at one moment: the ground, and the agents on it."""

    cells: np.ndarray
    """``[H, W]`` uint8 codes of `Cell`, without the agents."""
    agents: np.ndarray
    """``[A, 2]`` row and column of each agent."""
    cargo: np.ndarray
    """``[A]`` resources that each agent carries."""
    keys: np.ndarray
    """``[A]`` keys that each agent has."""
    step: int
    """Steps taken in this episode."""
    task: int
    """Number of the task that is played."""


def draw_text(view: WorldView, *, color: bool = True) -> str:
    """The world as lines of text, one sign per cell; `color` adds ANSI escape codes.

    Signs: ``#`` wall, ``.`` empty, ``*`` resource, ``D`` depot, ``+`` door, ``k`` key, ``a`` agent,
    ``A`` agent with cargo.
    """
    lines = []
    for row in _with_agents(view).tolist():
        signs = [_SIGNS[Cell(code)] for code in row]
        if color:
            signs = [
                f"{_ansi(_RGB[Cell(code)])}{sign}{_END}" if code != Cell.EMPTY else sign
                for code, sign in zip(row, signs, strict=True)
            ]
        lines.append("".join(signs))
    return "\n".join(lines)


def draw_rgb(view: WorldView, scale: int = 8) -> np.ndarray:
    """The world as an image ``[H * scale, W * scale, 3]`` uint8; a cell is `scale` pixels wide."""
    if not 1 <= scale <= _MAX_SCALE:
        raise ConfigError(f"scale={scale} pixels per cell; use 1 to {_MAX_SCALE}")
    palette = np.array([_RGB[code] for code in Cell], np.uint8)
    image: np.ndarray = palette[_with_agents(view)]
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def _with_agents(view: WorldView) -> np.ndarray:
    cells = view.cells.copy()
    rows, columns = view.agents.T
    cells[rows, columns] = np.where(view.cargo > 0, Cell.LOADED_AGENT, Cell.AGENT)
    return cells


def _ansi(rgb: tuple[int, int, int]) -> str:
    red, green, blue = rgb
    return f"\x1b[38;2;{red};{green};{blue}m"
