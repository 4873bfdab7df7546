"""`Actor`: what all actors have in common, and what only some can do."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from metta.agent.output import State
from metta.agent.policy import Policy

__all__ = ["Actor", "BufferWriter", "ValueSource"]


class BufferWriter(Protocol):
    """Acts without new memory, for a feed-forward policy of one observation array."""

    def act_into(
        self,
        leaf: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
        actions: np.ndarray,
        params: np.ndarray,
    ) -> None:
        """Write actions ``[n]`` int64 and parameters ``[n, P]`` float32.

        Every array must be contiguous but the mask and the noise.
        """
        ...


class ValueSource(Protocol):
    """Computes the values of whole rollouts in place of a feed-forward policy on the CPU."""

    def values_of(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Values ``[B]`` of observations ``[B, ...]``, in raw reward units."""
        ...


class Actor(Protocol):
    """Draws actions for a group of rows; a pure function of its inputs and the last `refresh`.

    Subclasses implement `act`; everything beyond it is optional and off by default.
    """

    kind: str
    """The name that `make_actor` uses."""
    produces: frozenset[str]
    """Columns that `act` returns: always "action"; also "value" and "dist_params" where free."""

    def refresh(self, policy: Policy) -> None:
        """Copy the policy's present parameters; called before every rollout."""
        ...

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """Columns ``[n, ...]`` for observations ``[n, ...]``, and the next recurrent state."""
        ...

    @property
    def buffer_writer(self) -> BufferWriter | None:
        """Writes actions straight into a rollout's memory; None if the actor cannot."""
        return None

    @property
    def value_source(self) -> ValueSource | None:
        """Computes the values of a complete rollout; None if the actor cannot."""
        return None

    @property
    def fused_actor(self) -> Any:
        """A capsule that a `FusedVecEnv` acts with, of the last `refresh`, or None."""
        return None
