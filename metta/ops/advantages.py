"""Advantage estimates over a rollout of T steps in N environments.

Terminations and time limits are kept apart everywhere here: `terminated` means that the state reached is
worth nothing, `episode_ended` (terminated or truncated) means that the next row is another episode.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

try:
    import metta.ops._native as _native
except ImportError:  # installed without a compiler: the fallback below gives the same bits
    _native = None

__all__ = ["VTrace", "gae", "native_available", "vtrace"]

_NATIVE_DTYPES = (torch.float32, torch.float64)


class VTrace(NamedTuple):
    """What V-trace returns: advantages for the policy gradient, and targets for the values."""

    advantages: Float[Tensor, "T N"]
    targets: Float[Tensor, "T N"]


def native_available() -> bool:
    """Whether the C kernels were built; without them CPU tensors take the slower loop."""
    return _native is not None


def gae(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    episode_ended: Bool[Tensor, "T N"],
    *,
    gamma: float,
    gae_lambda: float,
) -> Float[Tensor, "T N"]:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438), without gradient.

        delta_t = r_t + gamma * (1 - terminated_t) * next_values_t - values_t
        A_t     = delta_t + gamma * gae_lambda * (1 - episode_ended_t) * A_{t+1},    A_T = 0

    `next_values[t]` is the value of the state reached at t, before any reset: a time limit still
    bootstraps, a terminal state does not. Where a mask removes a term, that term may even be NaN.
    `episode_ended` must hold wherever `terminated` does. Units are those of the reward.
    """
    rewards, values, next_values = rewards.detach(), values.detach(), next_values.detach()
    _require_alike(
        {"rewards": rewards, "values": values, "next_values": next_values},
        {"terminated": terminated, "episode_ended": episode_ended},
    )
    inputs = (rewards, values, next_values, terminated, episode_ended)
    if not _runs_native(rewards):
        return _reference_gae(*inputs, gamma=gamma, gae_lambda=gae_lambda)
    advantages = torch.empty(rewards.shape, dtype=rewards.dtype)
    arrays = (tensor.contiguous().numpy() for tensor in inputs)
    _native.gae(*arrays, gamma, gae_lambda, advantages.numpy())
    return advantages


def vtrace(  # noqa: PLR0913 - gae's arguments and the three that make it off-policy
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    episode_ended: Bool[Tensor, "T N"],
    log_ratios: Float[Tensor, "T N"],
    *,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
) -> VTrace:
    """V-trace advantages and value targets (Espeholt et al. 2018, arXiv:1802.01561), no gradient.

        ratio_t   = exp(log_ratios_t)               new policy over the one that acted
        rho_t     = min(rho_clip, ratio_t),         c_t = gae_lambda * min(c_clip, ratio_t)
        delta_t   = rho_t * (r_t + gamma * (1 - terminated_t) * next_values_t - values_t)
        targets_t = values_t + sum_{k>=t} gamma^(k-t) * (c_t * ... * c_{k-1}) * delta_k
        A_t       = rho_t * (r_t + gamma * (1 - terminated_t) * next_target_t - values_t)

    The sum stops at the end of t's episode or of the rollout; `next_target_t` is targets_{t+1}
    inside an episode and next_values_t in its last row and in row T - 1. The arguments of `gae`
    mean here what they mean there; both clips may be infinite.

    With log_ratios 0 and both clips at least 1, `targets` equal gae + values for every gae_lambda.
    The advantages equal gae only if also gae_lambda is 1 and next_values_t is values_{t+1} inside
    episodes: V-trace always looks one step ahead and then trusts the target there.
    """
    rewards, values, next_values = rewards.detach(), values.detach(), next_values.detach()
    # taken once, for both kernels: no two exponentials agree in the last bit
    ratios = log_ratios.detach().exp()
    _require_alike(
        {"rewards": rewards, "values": values, "next_values": next_values, "log_ratios": ratios},
        {"terminated": terminated, "episode_ended": episode_ended},
    )
    inputs = (rewards, values, next_values, terminated, episode_ended, ratios)
    if not _runs_native(rewards):
        return _reference_vtrace(
            *inputs, gamma=gamma, gae_lambda=gae_lambda, rho_clip=rho_clip, c_clip=c_clip
        )
    result = VTrace(*(torch.empty(rewards.shape, dtype=rewards.dtype) for _ in range(2)))
    arrays = (tensor.contiguous().numpy() for tensor in inputs)
    outputs = (tensor.numpy() for tensor in result)
    _native.vtrace(*arrays, gamma, gae_lambda, rho_clip, c_clip, *outputs)
    return result


def _reference_gae(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    episode_ended: Bool[Tensor, "T N"],
    *,
    gamma: float,
    gae_lambda: float,
) -> Float[Tensor, "T N"]:
    """`gae` on any device and dtype; the C kernel repeats these operations in this order."""
    deltas = _td_errors(rewards, values, next_values, terminated, gamma)
    decays = torch.full_like(deltas, gamma * gae_lambda)
    return _discounted_sums(deltas, decays, episode_ended)


def _reference_vtrace(  # noqa: PLR0913 - the same arguments as vtrace
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    episode_ended: Bool[Tensor, "T N"],
    ratios: Float[Tensor, "T N"],
    *,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
) -> VTrace:
    """`vtrace` from ratios, on any device and dtype; the C kernel repeats it in this order."""
    rhos = ratios.clamp(max=rho_clip)
    deltas = rhos * _td_errors(rewards, values, next_values, terminated, gamma)
    decays = (gamma * gae_lambda) * ratios.clamp(max=c_clip)
    targets = values + _discounted_sums(deltas, decays, episode_ended)
    next_targets = next_values.clone()
    next_targets[:-1] = torch.where(episode_ended[:-1], next_values[:-1], targets[1:])
    advantages = rhos * _td_errors(rewards, values, next_targets, terminated, gamma)
    return VTrace(advantages, targets)


def _td_errors(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    gamma: float,
) -> Float[Tensor, "T N"]:
    return rewards + gamma * next_values.masked_fill(terminated, 0.0) - values


def _discounted_sums(
    terms: Float[Tensor, "T N"], decays: Float[Tensor, "T N"], episode_ended: Bool[Tensor, "T N"]
) -> Float[Tensor, "T N"]:
    """S_t = terms_t + decays_t * (1 - episode_ended_t) * S_{t+1}, from the last row backwards."""
    sums = terms.clone()
    for step in range(len(terms) - 2, -1, -1):
        sums[step] += decays[step] * sums[step + 1].masked_fill(episode_ended[step], 0.0)
    return sums


def _runs_native(tensor: Tensor) -> bool:
    return native_available() and tensor.device.type == "cpu" and tensor.dtype in _NATIVE_DTYPES


def _require_alike(arrays: dict[str, Tensor], masks: dict[str, Tensor]) -> None:
    """Raise ValueError unless all share one shape [T, N] and device, and `arrays` one dtype."""
    first_name, first = next(iter(arrays.items()))
    if first.ndim != 2:
        raise ValueError(f"{first_name} must have shape [T, N], got {list(first.shape)}")
    for name, tensor in {**arrays, **masks}.items():
        dtype = torch.bool if name in masks else first.dtype
        found = (list(tensor.shape), tensor.dtype, tensor.device)
        expected = (list(first.shape), dtype, first.device)
        if found != expected:
            raise ValueError(
                f"{name} has shape {found[0]}, {found[1]} on {found[2]}, but beside {first_name} "
                f"it must have shape {expected[0]}, {expected[1]} on {expected[2]}"
            )
