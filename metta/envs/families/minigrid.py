"""MiniGrid and BabyAI: their views declared as what they are, grids of codes."""

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from metta.envs.rows.row_spec import GymEnv

__all__ = ["with_codes"]

_IMAGE = "image"
_NUM_DIRECTIONS = 4
_OF_CODES = ("DirectionObsWrapper", "FullyObsWrapper", "ViewSizeWrapper")
"""MiniGrid's wrappers whose views are codes too."""


def with_codes(env: GymEnv) -> GymEnv:
    """The environment, its ``image`` declared as three codes per cell: object, colour and state.

    MiniGrid declares pixels of 0 to 255, which would be scaled like a photograph. The numbers stay as
    they are. Views that a wrapper made, such as drawn ones, keep their declaration, unless it is known
    that they are codes too.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not _is_view(space.spaces.get(_IMAGE)):
        return env
    if not _shows_codes(env):
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


def _shows_codes(env: GymEnv) -> bool:
    """Whether no wrapper may have made something else of the codes."""
    while isinstance(env, gymnasium.Wrapper):
        is_changed = isinstance(env, gymnasium.ObservationWrapper)
        if is_changed and type(env).__name__ not in _OF_CODES:
            return False
        env = env.env
    return True
