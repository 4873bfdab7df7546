"""Everything but tensors that decides what an update computes: constants of its compiled form."""

from typing import Any

import torch

from metta.agent.actors.plain_values import plain_values, values_of
from metta.rl.learn.update import UpdateRules

__all__ = ["python_state"]


def python_state(rules: UpdateRules, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """Plain values of the networks and losses, the settings, and those of the optimizer but its rate.

    Equal before and after means that a graph that was traced before still says what Python would do.
    """
    parts: list[Any] = [*plain_values(rules.policy)]
    parts += [("loss", loss.label, *values_of(loss.fn)) for loss in rules.custom]
    parts += vars(rules.config).items()
    for group in optimizer.param_groups:
        parts += [(k, v) for k, v in group.items() if k not in ("lr", "params")]
    return tuple(parts)
