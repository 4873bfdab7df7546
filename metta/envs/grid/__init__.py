"""Multi-agent grid worlds that ship with metta: gather, deliver, open doors, get in each other's way."""

from metta.envs.grid.config import TASKS, GridWorldConfig
from metta.envs.grid.grid_vec_env import GridVecEnv
from metta.envs.grid.layout import Cell
from metta.envs.grid.render import WorldView, draw_rgb, draw_text
from metta.envs.grid.worlds import GridWorlds, native_available

__all__ = [
    "TASKS",
    "Cell",
    "GridVecEnv",
    "GridWorldConfig",
    "GridWorlds",
    "WorldView",
    "draw_rgb",
    "draw_text",
    "native_available",
]
