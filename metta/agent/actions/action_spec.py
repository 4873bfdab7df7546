"""Action spaces as pure functions of distribution parameters and pre-drawn noise.

What is stored in a rollout is the raw sample: before clipping, before squashing. `to_env` turns it into
what the environment takes. Nothing here draws random numbers: `sample` is deterministic in its noise.
"""

from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from metta.agent.actions.categorical import DiscreteSpec, MultiDiscreteSpec
from metta.agent.actions.gaussian import BoxSpec, SquashedBoxSpec
from metta.errors import ConfigError, SpaceError

__all__ = ["ActionSpec", "action_spec_of", "draw_noise"]


class ActionSpec(Protocol):
    """How distribution parameters ``[..., P]`` become actions, log-probabilities and entropies."""

    @property
    def num_params(self) -> int:
        """P: width of the distribution parameters."""
        ...

    @property
    def noise_dim(self) -> int:
        """Random numbers needed per action."""
        ...

    @property
    def noise_kind(self) -> Literal["gumbel", "normal"]:
        """Distribution of these numbers."""
        ...

    @property
    def mask_size(self) -> int:
        """Entries of an action mask; 0 if actions cannot be masked."""
        ...

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one stored action."""
        ...

    @property
    def action_dtype(self) -> torch.dtype:
        """Type of stored actions."""
        ...

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None) -> Tensor:
        """Actions ``[..., *action_shape]``, deterministic in `noise` ``[..., noise_dim]``."""
        ...

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The most likely actions ``[..., *action_shape]``."""
        ...

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Stored actions ``[n, *action_shape]`` in the environment's units and dtype."""
        ...

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """Log-probability (density) ``[...]`` of stored actions."""
        ...

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Entropy ``[...]`` in nats."""
        ...

    def log_prob_and_entropy(
        self, params: Tensor, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both at once, sharing the work."""
        ...


def draw_noise(
    spec: ActionSpec, generator: np.random.Generator, num_steps: int, num_rows: int
) -> np.ndarray:
    """The noise of a whole rollout, ``[T, N, noise_dim]`` float32, drawn in one go."""
    shape = (num_steps, num_rows, spec.noise_dim)
    if spec.noise_kind == "normal":
        return generator.standard_normal(shape, dtype=np.float32)
    exponential = generator.standard_exponential(shape, dtype=np.float32)
    np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
    return -np.log(exponential)


def action_spec_of(space: spaces.Space[Any], *, squash: bool = False) -> ActionSpec:
    """The specification of an action space; `squash` asks for tanh instead of clipping (Box)."""
    if squash and not isinstance(space, spaces.Box):
        raise ConfigError(f"squash=True needs a Box action space, but the space is {space}")
    if isinstance(space, spaces.Discrete):
        return DiscreteSpec(int(space.n), int(space.start), env_dtype=space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        starts = tuple(int(s) for s in np.broadcast_to(space.start, space.nvec.shape).ravel())
        return MultiDiscreteSpec(sizes, starts, tuple(space.shape), space.dtype)
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return MultiDiscreteSpec((2,) * count, (0,) * count, tuple(space.shape), space.dtype)
    if isinstance(space, spaces.Box):
        return _box_spec(space, squash)
    raise SpaceError(
        f"action space {space} is not supported; supported: Discrete, MultiDiscrete, MultiBinary, "
        "Box (flatten Dict and Tuple actions with a gymnasium action wrapper)"
    )


def _box_spec(space: spaces.Box, squash: bool) -> BoxSpec:
    if space.dtype is None or space.dtype.kind != "f":
        raise SpaceError(
            f"Box actions must be floats, but the space is {space}; use MultiDiscrete for integers"
        )
    low, high = space.low.ravel(), space.high.ravel()
    if squash and not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ConfigError(
            f"squash=True needs finite bounds with low < high, but the action space is {space}; "
            "give the space bounds, or use squash=False, which clips"
        )
    kind = SquashedBoxSpec if squash else BoxSpec
    return kind(low, high, tuple(space.shape), space.dtype)
