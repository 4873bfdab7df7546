"""Environments that give and take their state; free of torch, so that workers start quickly."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from metta.envs.toy import CountdownEnv, MaskedCorridorEnv, NestedEnv

_PLAIN = (bool, int, float, str, type(None), np.ndarray, np.random.Generator)


class GivesState:
    """Laid over an environment whose state is in plain attributes."""

    def get_state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if type(value) in _PLAIN}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class SavedCartPole(GivesState, CartPoleEnv):
    """Gymnasium's."""


class SavedCountdown(GivesState, CountdownEnv):
    """The toy."""


class SavedMaskedCorridor(GivesState, MaskedCorridorEnv):
    """The toy."""


class SavedNested(GivesState, NestedEnv):
    """The toy."""
