"""MiniGrid and BabyAI: their views declared as what they are, grids of codes."""

import importlib
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.rows.row_spec import GymEnv

__all__ = ["with_codes"]

_IMAGE = "image"
_NUM_DIRECTIONS = 4


def with_codes(env: GymEnv) -> GymEnv:
    """The environment, its ``image`` declared as three codes per cell: object, colour and state.

    MiniGrid declares pixels of 0 to 255, which would be scaled like a photograph. The numbers stay as
    they are; only views of another form, such as drawn ones, keep their declaration.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not _is_view(space.spaces.get(_IMAGE)):
        return env
    constants = importlib.import_module("minigrid.core.constants")
    # the last one also says where agents look
    num_states = max(len(constants.STATE_TO_IDX), _NUM_DIRECTIONS)
    cell = [len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), num_states]
    nvec = np.broadcast_to(np.array(cell, np.uint8), space[_IMAGE].shape or ())
    codes = spaces.MultiDiscrete(nvec, dtype=np.uint8)
    parts = [(key, codes if key == _IMAGE else part) for key, part in space.spaces.items()]
    env.observation_space = spaces.Dict(parts)
    return env


def _is_view(space: Any) -> bool:
    is_bytes = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return is_bytes and len(space.shape) == 3 and space.shape[2] == 3
