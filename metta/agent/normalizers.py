"""Running moments as part of a policy: saved, loaded and exported with its weights."""

import torch
from torch import Tensor, nn

from metta.ops.running_moments import Moments, batch_moments, merge, variance
from metta.spaces import ObsSpec

__all__ = ["ObsNormalizer", "ReturnNormalizer", "RunningNormalizer"]

_EPSILON = 1e-8


class RunningNormalizer(nn.Module):
    """Mean and deviation of everything seen so far, over the leading axis.

    Before the first `update` it changes nothing (mean 0, deviation 1).
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    @torch.no_grad()
    def update(self, values: Tensor, weights: Tensor) -> None:
        """Take in values ``[B, ...]``; rows with weight 0 do not count."""
        seen = Moments(self.count, self.mean, self.m2)
        total = merge(seen, batch_moments(values.double(), weights.double()))
        self.count.copy_(total.count)
        self.mean.copy_(total.mean)
        self.m2.copy_(total.m2)
        self.shift.copy_(total.mean)
        self.scale.copy_((variance(total) + _EPSILON).sqrt())

    def normalize(self, values: Tensor) -> Tensor:
        """To mean 0 and deviation 1."""
        return (values - self.shift) / self.scale

    def denormalize(self, values: Tensor) -> Tensor:
        """Back to raw units."""
        return values * self.scale + self.shift


class ObsNormalizer(nn.Module):
    """A running normaliser for each float leaf; pixels and discrete values pass unchanged."""

    def __init__(self, spec: ObsSpec, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.leaves = nn.ModuleDict(
            {
                leaf.key: RunningNormalizer(leaf.shape)
                for leaf in spec.leaves
                if leaf.kind == "box" and leaf.dtype.kind == "f"
            }
        )

    def forward(self, key: str, values: Tensor) -> Tensor:
        """One leaf, normalised and clipped."""
        if key not in self.leaves:
            return values
        return self._leaf(key).normalize(values).clamp(-self.clip, self.clip)

    def update(self, key: str, values: Tensor, weights: Tensor) -> None:
        """Take in one leaf ``[B, ...]``."""
        if key in self.leaves:
            self._leaf(key).update(values, weights)

    def _leaf(self, key: str) -> RunningNormalizer:
        leaf = self.leaves[key]
        assert isinstance(leaf, RunningNormalizer)
        return leaf


class ReturnNormalizer(RunningNormalizer):
    """Scale of the returns: networks predict in units of it, callers see raw reward units."""

    def __init__(self) -> None:
        super().__init__(())
