"""A rollout of random numbers, for which an update can be compiled before the first real one exists."""

import torch
from torch import Tensor

from metta.agent.actions.action_spec import draw_noise
from metta.agent.policy import Policy
from metta.rl.collect.buffer import FLOAT_COLUMNS, STATE_PREFIX, RolloutBuffer, obs_column
from metta.rl.learn.driver import current_log_probs
from metta.seeding import numpy_generator

__all__ = ["synthetic_rollout"]


def synthetic_rollout(policy: Policy, buffer: RolloutBuffer) -> dict[str, Tensor]:
    """Columns laid out as those of the buffer's rollouts, before there is one.

    Its numbers are random and differ, so that no gradient is mere rounding.
    """
    lead, device = (buffer.horizon, buffer.num_rows), policy.device
    generator = numpy_generator(0, "drawn rollout")
    columns: dict[str, Tensor] = {}
    for leaf in policy.obs_spec.leaves:
        drawn = torch.from_numpy(leaf.draw(generator, *lead))
        columns[obs_column(policy.obs_spec, leaf.key)] = drawn.to(
            device, buffer.obs[leaf.key].dtype
        )
    spec = policy.action_spec
    noise = torch.from_numpy(draw_noise(spec, generator, *lead)).to(device)
    actions = spec.sample(noise.new_zeros(*lead, spec.num_params), noise, None)
    columns["actions"] = actions.to(buffer.actions.dtype)
    for name in FLOAT_COLUMNS:
        numbers = torch.from_numpy(generator.standard_normal(lead))
        columns[name] = numbers.to(device, policy.dtype)
    for name in ("terminated", "truncated", "episode_starts"):
        columns[name] = torch.zeros(lead, dtype=torch.bool, device=device)
    columns["valid"] = torch.ones(lead, dtype=torch.bool, device=device)
    if buffer.masks is not None:
        columns["action_masks"] = torch.ones_like(buffer.masks[:-1], device=device)
    for key, part in buffer.states.items():
        columns[STATE_PREFIX + key] = torch.zeros_like(part[:-1])
    # the policy's own: an update from the start of its trust region
    columns["log_probs"] = current_log_probs(columns, policy)
    return columns
