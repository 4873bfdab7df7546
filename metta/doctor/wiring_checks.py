"""Checks of a network by one pass forward and back: gradients, rows, and what it forgets."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from metta.agent.evaluation_mode import evaluating
from metta.agent.output import Obs
from metta.agent.policy import Policy
from metta.doctor.report import Finding

__all__ = ["check_wiring"]

_CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}


def check_wiring(policy: Policy, obs: Obs) -> Iterator[Finding]:
    """Gradients reach actor and critic, rows are apart, and recurrent state ends with the episode.

    `obs` holds different observations ``[1, N, ...]``. The policy is left as it was.
    """
    output = policy(obs, None, _starts(obs))
    noise = torch.linspace(-1.0, 1.0, output.dist_params.shape[-1]).to(output.dist_params)
    # the free deviation of Box actions always has a gradient, whatever the network does
    wanted = [p for p in policy.module.parameters() if p.requires_grad]
    width = output.dist_params.shape[-1] // (1 if policy.log_std is None else 2)
    heads = {
        "actor": (output.dist_params * noise)[..., :width].sum(),
        "critic": output.value.square().sum() + output.value.sum(),
    }
    broken = [name for name, number in heads.items() if not _has_gradient(number, wanted)]
    for name in broken:
        yield Finding(
            "gradients",
            "fault",
            f"no parameter of the network gets a gradient from the {name}",
            f"the {name}'s output is cut from its layers: detach(), no_grad(), .data, argmax, numpy, or "
            "frozen layers (requires_grad_(False))",
            f"compute the {name}'s output with differentiable operations on trainable layers",
        )
    if not broken:
        yield Finding("gradients", "ok", "actor and critic both reach trainable parameters")
    yield from _check_rows(policy, obs)
    if policy.is_recurrent:
        yield from _check_forgetting(policy, obs)


def _has_gradient(number: Tensor, wanted: Sequence[Tensor]) -> bool:
    if not number.requires_grad or not wanted:
        return False
    found = torch.autograd.grad(number, wanted, retain_graph=True, allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in found)


@torch.no_grad()
def _check_rows(policy: Policy, obs: Obs) -> Iterator[Finding]:
    with evaluating(policy):
        together = policy(obs, None, _starts(obs))
        first = {key: leaf[:, :1] for key, leaf in obs.items()}
        alone = policy(first, None, _starts(first))
    pairs = [(together.dist_params, alone.dist_params), (together.value, alone.value)]
    if not all(torch.allclose(many[:, :1], one, **_CLOSE) for many, one in pairs):
        yield Finding(
            "rows",
            "fault",
            "the network's output for one row depends on the other rows of the batch",
            "a reshape or a mean mixes the batch with other dimensions, or a layer uses batch statistics",
            "keep the first dimension apart: flatten(1), not flatten(); LayerNorm, not BatchNorm",
        )


@torch.no_grad()
def _check_forgetting(policy: Policy, obs: Obs) -> Iterator[Finding]:
    rows = next(iter(obs.values())).shape[1]
    with evaluating(policy):
        state = policy.initial_state(rows)
        other = {key: part + torch.rand_like(part.float()).to(part) for key, part in state.items()}
        fresh = policy(obs, state, _starts(obs)).dist_params
        begun = policy(obs, other, _starts(obs)).dist_params
        going_on = policy(obs, other, ~_starts(obs)).dist_params
    if not torch.allclose(fresh, begun, **_CLOSE):
        yield Finding(
            "recurrent state",
            "fault",
            "where an episode begins, the network still depends on the state of the one before",
            "the module does not use `starts`",
            "begin the step with state = torch.where(starts[step, :, None], 0.0, state)",
        )
    elif torch.allclose(fresh, going_on, rtol=0.0, atol=1e-7):
        yield Finding(
            "recurrent state",
            "warning",
            "the network's output does not depend on its state",
            "the state is not read, or is overwritten before it is",
            "pass the state to the recurrent layer, and return the new one",
        )
    else:
        yield Finding("recurrent state", "ok", "it is used, and forgotten where an episode begins")


def _starts(obs: Obs) -> Tensor:
    leaf = next(iter(obs.values()))
    return torch.ones(leaf.shape[:2], dtype=torch.bool, device=leaf.device)
