"""The deterministic part of a policy as one module from named tensors to named tensors."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metta.agent.actions.action_spec import ActionSpec
from metta.agent.actions.categorical import DiscreteSpec, MultiDiscreteSpec
from metta.agent.actions.gaussian import BoxSpec, SquashedBoxSpec
from metta.agent.policy import Policy
from metta.errors import PolicyError
from metta.spaces import MASK_KEY

__all__ = ["PolicyGraph", "env_units", "obs_name"]


class PolicyGraph(nn.Module):
    """A copy of a policy on the CPU, normalisers inside, for one step of any number of rows.

        outputs = PolicyGraph(policy, with_mask=False)({"obs": obs})      # [n, ...] in, [n, ...] out

    Inputs: ``obs`` (or ``obs/<leaf>`` for each leaf of a nested observation), for recurrent policies
    ``state/<part>`` and ``starts``, on request ``action_mask``. Outputs: ``dist_params``, ``value``, the
    most likely ``action`` as the environment takes it, and ``next_state/<part>``.
    """

    def __init__(self, policy: Policy, *, with_mask: bool) -> None:
        super().__init__()
        try:
            copied = copy.deepcopy(policy)
        except Exception as error:
            raise PolicyError(f"the policy cannot be copied: {error}") from error
        copied.precision = torch.float32
        self.policy: Policy = copied.cpu().eval().requires_grad_(False)
        self.with_mask = with_mask

    @property
    def input_names(self) -> list[str]:
        """What `forward` takes, in this order."""
        names = [obs_name(self.policy, leaf.key) for leaf in self.policy.obs_spec.leaves]
        names += [f"state/{part}" for part in self.policy.initial_state(1)]
        names += ["starts"] if self.policy.is_recurrent else []
        return [*names, MASK_KEY] if self.with_mask else names

    @property
    def output_names(self) -> list[str]:
        """What `forward` returns, in this order."""
        states = [f"next_state/{part}" for part in self.policy.initial_state(1)]
        return ["dist_params", "value", "action", *states]

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of all rows."""
        policy = self.policy
        obs = {
            leaf.key: inputs[obs_name(policy, leaf.key)].unsqueeze(0)
            for leaf in policy.obs_spec.leaves
        }
        state, starts = None, None
        if policy.is_recurrent:
            state = {part: inputs[f"state/{part}"] for part in policy.initial_state(1)}
            starts = inputs["starts"].unsqueeze(0)
        output = policy(obs, state, starts)
        params = output.dist_params.squeeze(0)
        mode = policy.action_spec.mode(params, inputs[MASK_KEY] if self.with_mask else None)
        found = {
            "dist_params": params,
            "value": output.value.squeeze(0),
            "action": env_units(policy.action_spec, mode),
        }
        return found | {f"next_state/{part}": value for part, value in output.state.items()}


def obs_name(policy: Policy, key: str) -> str:
    """The input that takes an observation leaf."""
    return "obs" if policy.obs_spec.is_plain else f"obs/{key}"


def env_units(spec: ActionSpec, action: Tensor) -> Tensor:
    """`ActionSpec.to_env` in torch: stored actions ``[n, ...]`` as the environment takes them."""
    if isinstance(spec, DiscreteSpec):
        return (action + spec.start).to(_torch_dtype(spec.env_dtype))
    if isinstance(spec, MultiDiscreteSpec):
        shifted = action + torch.tensor(spec.starts, dtype=action.dtype)
    elif isinstance(spec, BoxSpec):
        shifted = _bounded(spec, action)
    else:
        raise PolicyError(f"actions of {type(spec).__name__} cannot be exported")
    return shifted.reshape(action.shape[0], *spec.env_shape).to(_torch_dtype(spec.env_dtype))


def _bounded(spec: BoxSpec, action: Tensor) -> Tensor:
    kind = torch.promote_types(action.dtype, _torch_dtype(spec.low.dtype))
    low, high = (torch.tensor(bound, dtype=kind) for bound in (spec.low, spec.high))
    if isinstance(spec, SquashedBoxSpec):
        share = (action.tanh() + 1.0) * 0.5  # in the type of the action, as NumPy does it
        action = low * (1.0 - share).to(kind) + high * share.to(kind)
    return torch.minimum(torch.maximum(action.to(kind), low), high)


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
