"""`moment_of`: what tasks are collected with, as it is in the process that learns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.rl.collect.opponents import OpponentPool
from metta.rl.remote.tasks import Moment

__all__ = ["moment_of", "weights_of"]


def moment_of(
    ticket: int,
    weights: Mapping[str, np.ndarray],
    curriculum: Curriculum | None = None,
    opponents: OpponentPool | None = None,
    *,
    threads: int | None = None,
) -> Moment:
    """These weights with the state of the curriculum and of the opponents; `threads`: default torch's."""
    return Moment(
        ticket,
        weights,
        threads or torch.get_num_threads(),
        None if curriculum is None else curriculum.state_dict(),
        None if opponents is None else _plain(opponents.state_dict()),
    )


def weights_of(policy: Policy) -> dict[str, np.ndarray]:
    """The whole state of a policy, copied to the host."""
    return {
        name: part.detach().to("cpu", copy=True).numpy()
        for name, part in policy.state_dict().items()
    }


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Weights of past selves as copies."""
    past = [
        {name: part.detach().cpu().clone() for name, part in one.items()} for one in state["past"]
    ]
    return {**state, "past": past}
