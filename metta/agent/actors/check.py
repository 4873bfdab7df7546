"""Random inputs to compare actors on, and when two actions count as the same."""

import numpy as np
import torch
from torch import Tensor

from metta.agent.actions.action_spec import ActionSpec
from metta.spaces import ObsSpec

__all__ = ["difference", "random_mask", "random_obs", "same_actions"]

_TOLERANCE = 1e-4
_FAR = 100.0


def random_obs(
    spec: ObsSpec, generator: np.random.Generator, num_rows: int
) -> dict[str, np.ndarray]:
    """Leaves ``[n, ...]`` that an environment could return; some floats are large, to meet clipping."""
    obs = {leaf.key: leaf.draw(generator, num_rows, largest_integer=255) for leaf in spec.leaves}
    for leaf in obs.values():
        if leaf.dtype.kind == "f":
            leaf[generator.random(num_rows) < 0.2] *= _FAR
    return obs


def random_mask(
    spec: ActionSpec, generator: np.random.Generator, num_rows: int
) -> np.ndarray | None:
    """Legal actions ``[n, mask_size]``, half of them; None if actions cannot be masked."""
    return generator.random((num_rows, spec.mask_size)) < 0.5 if spec.mask_size else None


def same_actions(
    spec: ActionSpec, params: Tensor, noise: Tensor, mask: Tensor | None, found: Tensor
) -> bool:
    """Whether `found` is what `params` and `noise` give, up to rounding.

    A discrete action may differ where a nudge of 1e-4 in its favour makes it the sample.
    """
    wanted = spec.sample(params, noise, mask)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if wanted.dtype.is_floating_point:
        return torch.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    if torch.equal(found, wanted):
        return True
    sizes = torch.tensor(getattr(spec, "sizes", (spec.num_params,)), device=found.device)
    parts = found.reshape(len(found), -1)
    if bool(((parts < 0) | (parts >= sizes)).any()):
        return False
    places = parts + sizes.cumsum(0) - sizes
    nudge = torch.zeros_like(params).scatter(-1, places, _TOLERANCE)
    nudged = params + nudge * (1.0 + params.abs())
    return torch.equal(spec.sample(nudged, noise, mask), found)


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest deviation of parameters ``[n, P]``, relative to the largest one of its row."""
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        gaps = np.where(same, 0.0, np.abs(found - wanted))
    sizes = np.abs(wanted).max(-1, initial=0.0, where=~np.isnan(wanted))
    return float((gaps.max(-1) / (1.0 + sizes)).max())
