from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor


class Rollout(NamedTuple):
    """The first five arguments of `gae` and `vtrace`, in order."""

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    episode_ended: Tensor


RolloutMaker = Callable[..., Rollout]


@pytest.fixture(scope="session")
def make_rollout() -> RolloutMaker:
    """Random rollouts; from 4 x 4 on, with every kind of episode end in the first four columns."""

    def make(
        num_steps: int,
        num_envs: int,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        consistent: bool = False,
    ) -> Rollout:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_steps, num_envs)
        rewards, values, next_values = (
            torch.randn(shape, dtype=dtype, generator=generator) for _ in range(3)
        )
        terminated = torch.rand(shape, generator=generator) < 0.15
        truncated = torch.rand(shape, generator=generator) < 0.15
        if num_steps >= 4 and num_envs >= 4:
            terminated[[1, 2, -1], [0, 1, 0]] = True
            truncated[[1, 2, -1], [0, 2, 1]] = True  # [1, 0] ends both ways at once
            terminated[-1, 1:] = truncated[-1, 2:] = False
            terminated[-1, 3] = truncated[-1, 3] = True
        ended = terminated | truncated
        if consistent:  # inside an episode, the state reached is the state of the next row
            next_values[:-1] = torch.where(ended[:-1], next_values[:-1], values[1:])
        return Rollout(rewards, values, next_values, terminated, ended)

    return make
