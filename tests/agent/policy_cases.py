"""Spaces, agents and observations that several tests of policies share."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from metta.train.train_config import AgentConfig

T, N = 4, 3
VECTOR = spaces.Box(-1, 1, (5,))
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1, 1, (2,))

CONFIGS = {
    "mlp": (VECTOR, AgentConfig(hidden_size=8)),
    "normalised": (
        VECTOR,
        AgentConfig(hidden_size=8, normalize_observations=True, normalize_returns=True),
    ),
    "lstm": (VECTOR, AgentConfig(hidden_size=8, core="lstm")),
    "gru": (VECTOR, AgentConfig(hidden_size=8, core="gru")),
    "cnn": (spaces.Box(0, 255, (6, 6, 3), np.uint8), AgentConfig(hidden_size=8)),
}


def randoms(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def vectors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"obs": randoms(T, N, 5).to(dtype)}


def observations(space: spaces.Box, seed: int = 0) -> dict[str, Tensor]:
    if space.dtype == np.uint8:
        generator = torch.Generator().manual_seed(seed)
        shape = (T, N, *space.shape)
        return {"obs": torch.randint(0, 256, shape, generator=generator).to(torch.uint8)}
    return {"obs": randoms(T, N, *space.shape, seed=seed)}


def starts_inside() -> Tensor:
    starts = torch.zeros(T, N, dtype=torch.bool)
    starts[0] = starts[2, 1] = True
    return starts
