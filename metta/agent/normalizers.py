"""Running moments as part of a policy: saved, loaded and exported with its weights."""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from metta.ops.running_moments import Moments, batch_moments, merge, pack, unpack, variance
from metta.ops.trees import tree_reduce
from metta.spaces import ObsSpec

__all__ = ["MAX_DEVIATIONS", "ObsNormalizer", "Reduce", "ReturnNormalizer", "RunningNormalizer"]

MAX_DEVIATIONS = 100.0
"""How far from the mean a value may count, in deviations of at least 1; farther ones are moved there."""
_MAX_FIRST_ROWS = 4096
_EPSILON = 1e-8
_EXACT = ("count", "mean", "m2")

Reduce = Callable[[Sequence[Tensor], Callable[[Tensor, Tensor], Tensor]], Tensor]
"""Combines one tensor of each shard."""


class RunningNormalizer(nn.Module):
    """Mean and deviation of everything seen so far, over the leading axis.

    Before the first row that counts it changes nothing (mean 0, deviation 1). The moments stay
    float64 whatever type a policy is cast to; `shift` and `scale` are their copies in its type. One outlier
    cannot dominate them: it is counted at `MAX_DEVIATIONS`.
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

    def update(self, values: Tensor, weights: Tensor) -> int:
        """Add values ``[B, ...]``; rows with weight 0 do not count. Returns how many were bounded."""
        return self.update_from([(values, weights)])

    @torch.no_grad()
    def update_from(
        self, shards: Sequence[tuple[Tensor, Tensor]], reduce: Reduce = tree_reduce
    ) -> int:
        """Add values and weights of several shards, which `reduce` puts together in their order."""
        found = reduce([self._packed(*shard) for shard in shards], self._merged)
        moments = unpack(found[1:], self.mean.shape)
        total = merge(Moments(self.count, self.mean, self.m2), moments)
        self.count.copy_(total.count)
        self.mean.copy_(total.mean)
        self.m2.copy_(total.m2)
        self._publish()
        return int(found[0])

    def _packed(self, values: Tensor, weights: Tensor) -> Tensor:
        """Of one shard: how many values were bounded, and the moments, in one vector."""
        rows, num_bounded = self._bounded(values.double(), weights)
        moments = pack(batch_moments(rows, weights.double()))
        return torch.cat([moments.new_tensor([num_bounded]), moments])

    def _merged(self, left: Tensor, right: Tensor) -> Tensor:
        shape = self.mean.shape
        moments = pack(merge(unpack(left[1:], shape), unpack(right[1:], shape)))
        return torch.cat([left[:1] + right[:1], moments])

    def _bounded(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, int]:
        """The rows themselves, unless some of them are too far away."""
        if not len(rows):
            return rows, 0
        center, deviation = self._expected(rows, weights)
        reach = MAX_DEVIATIONS * deviation.clamp(min=1.0)
        smallest, largest = center - reach, center + reach
        if bool(((rows.amin(0) >= smallest) & (rows.amax(0) <= largest)).all()):
            return rows, 0
        bounded = torch.minimum(torch.maximum(rows, smallest), largest)
        counts = (weights != 0).reshape(-1, *(1,) * (rows.ndim - 1))
        return bounded, int(((bounded != rows) & counts).sum())

    def _expected(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of what was seen; at first medians of the rows, which outliers hardly move."""
        if self.count > 0:
            return self.mean, variance(Moments(self.count, self.mean, self.m2)).sqrt()
        known = rows[weights != 0]
        if not len(known):
            return self.mean, torch.ones_like(self.mean)
        known = known[:: -(-len(known) // _MAX_FIRST_ROWS)]
        center = _median(known)
        return center, _median((known - center).abs())

    def copy_state(self) -> dict[str, Tensor]:
        """The moments as they are now; `load_state_dict` puts them back."""
        return {name: value.clone() for name, value in self.state_dict().items()}

    def normalize(self, values: Tensor) -> Tensor:
        """To mean 0 and deviation 1."""
        return (values - self.shift) / self.scale

    def denormalize(self, values: Tensor) -> Tensor:
        """Back to raw units."""
        return values * self.scale + self.shift

    def _publish(self) -> None:
        deviation = (variance(Moments(self.count, self.mean, self.m2)) + _EPSILON).sqrt()
        self.shift.copy_(self.mean)
        self.scale.copy_(torch.where(self.count > 0, deviation, torch.ones_like(deviation)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast like any module, but never round the moments."""
        exact = {name: getattr(self, name) for name in _EXACT}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # reason: torch leaves it untyped
        for name, moments in exact.items():
            moved = getattr(self, name)
            if moved.dtype != moments.dtype:
                setattr(self, name, moments.to(moved.device))
        with torch.no_grad():
            self._publish()
        return self


class ObsNormalizer(nn.Module):
    """A running normaliser for each float leaf; pixels and discrete values pass unchanged."""

    def __init__(self, spec: ObsSpec, clip: float) -> None:
        super().__init__()
        self.clip = clip
        floats = [leaf for leaf in spec.leaves if leaf.kind == "box" and leaf.dtype.kind == "f"]
        # by number: module names may not hold dots, nor be words such as "values" or "type"
        self.leaves = nn.ModuleList([RunningNormalizer(leaf.shape) for leaf in floats])
        self._numbers = {leaf.key: number for number, leaf in enumerate(floats)}

    def forward(self, key: str, values: Tensor) -> Tensor:
        """One leaf, normalised and clipped."""
        if key not in self._numbers:
            return values
        return self.leaf(key).normalize(values).clamp(-self.clip, self.clip)

    def update(self, key: str, values: Tensor, weights: Tensor) -> int:
        """Add one leaf ``[B, ...]``; returns how many values were bounded."""
        return self.update_from(key, [(values, weights)])

    def update_from(
        self, key: str, shards: Sequence[tuple[Tensor, Tensor]], reduce: Reduce = tree_reduce
    ) -> int:
        """Add one leaf ``[B, ...]`` of each shard; returns how many values were bounded."""
        return self.leaf(key).update_from(shards, reduce) if key in self._numbers else 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Leaves that are normalised."""
        return tuple(self._numbers)

    def leaf(self, key: str) -> RunningNormalizer:
        """The normaliser of one leaf."""
        leaf = self.leaves[self._numbers[key]]
        assert isinstance(leaf, RunningNormalizer)
        return leaf


class ReturnNormalizer(RunningNormalizer):
    """Scale of the returns: networks predict in units of it, callers see raw reward units."""

    def __init__(self) -> None:
        super().__init__(())


def _median(rows: Tensor) -> Tensor:
    """By sorting: `torch.median` is not deterministic on every device."""
    return rows.sort(dim=0).values[len(rows) // 2]
