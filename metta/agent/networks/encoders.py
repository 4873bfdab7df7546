"""Observation leaves -> one feature vector per row."""

import math
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from metta.errors import ConfigError
from metta.spaces import MIN_IMAGE_PIXELS, ObsLeaf, ObsSpec

if TYPE_CHECKING:
    from metta.train.train_config import AgentConfig

__all__ = ["ACTIVATIONS", "ObsEncoder", "nature_cnn", "orthogonal", "small_cnn"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Orthogonal weights and zero bias (Saxe et al. 2014), the usual start for PPO."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def nature_cnn(channels: int) -> nn.Sequential:
    """The convolutions of Mnih et al. (2015), for frames of at least 36 x 36 pixels."""
    return nn.Sequential(
        orthogonal(nn.Conv2d(channels, 32, 8, stride=4)), nn.ReLU(),
        orthogonal(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
        orthogonal(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip


def small_cnn(channels: int) -> nn.Sequential:
    """Two padded 3 x 3 convolutions, for little grids of any size."""
    return nn.Sequential(
        orthogonal(nn.Conv2d(channels, 32, 3, padding=1)), nn.ReLU(),
        orthogonal(nn.Conv2d(32, 32, 3, padding=1)), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip


class GridStem(nn.Module):
    """One grid or image leaf ``[B, ...]`` -> flat features ``[B, F]``."""

    def __init__(self, leaf: ObsLeaf, kind: str, image_scale: float) -> None:
        super().__init__()
        self.channels_last = _has_channels_last(leaf.shape)
        height, width = leaf.shape[:2] if self.channels_last else leaf.shape[1:]
        channels = leaf.shape[2] if self.channels_last else leaf.shape[0]
        large = min(height, width) >= MIN_IMAGE_PIXELS
        if kind == "nature_cnn" and not large:
            raise ConfigError(
                f"agent nature_cnn needs frames of at least {MIN_IMAGE_PIXELS} pixels, but "
                f"observation {leaf.key!r} has shape {leaf.shape}; use name='simple_cnn'"
            )
        use_nature = kind == "nature_cnn" or (kind != "simple_cnn" and large)
        self.convolutions = (nature_cnn if use_nature else small_cnn)(channels)
        self.scale = _scale_of(leaf, image_scale)
        with torch.no_grad():
            self.output_size = self.convolutions(torch.zeros(1, channels, height, width)).shape[1]

    def forward(self, grid: Tensor) -> Tensor:
        """Convolve, pixels and codes scaled to 0..1."""
        if self.channels_last:
            grid = grid.movedim(-1, -3)
        # the layout that convolutions are fastest in, by a quarter on a CPU
        grid = (grid * self.scale).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.convolutions(grid)
        return features


def _scale_of(leaf: ObsLeaf, image_scale: float) -> float:
    return 1.0 / image_scale if leaf.is_image else 1.0


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """Frames are square if any two axes are; otherwise the outer axis with fewer entries is channels."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last < first


class VectorStem(nn.Module):
    """Any other leaf ``[B, ...]`` -> flat features ``[B, F]``; discrete values become one-hot."""

    elements: Tensor
    codes: Tensor

    def __init__(self, leaf: ObsLeaf, image_scale: float) -> None:
        super().__init__()
        self.categories = leaf.categories
        self.scale = _scale_of(leaf, image_scale)
        self.flatten = len(leaf.shape) > 1
        self.unsqueeze = len(leaf.shape) == 0
        size = math.prod(leaf.shape)
        self.output_size = sum(self.categories) if self.categories else size
        # the value that each place of the one-hot code encodes, and its element
        places = [(at, code) for at, n in enumerate(self.categories) for code in range(n)]
        self.register_buffer("elements", torch.tensor([at for at, _ in places]), persistent=False)
        self.register_buffer("codes", torch.tensor([code for _, code in places]), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Flatten, or one-hot and concatenate."""
        if self.unsqueeze:
            values = values.unsqueeze(-1)
        if self.flatten:
            values = values.flatten(1)
        if not self.categories:
            return values if self.scale == 1.0 else values * self.scale
        return torch.eq(values.index_select(-1, self.elements), self.codes)


class ObsEncoder(nn.Module):
    """All leaves -> features ``[B, hidden_size]``: stems side by side, then an MLP.

    Grids with convolutions get one dense layer behind them, pure vectors get `num_layers`.
    """

    def __init__(self, spec: ObsSpec, kind: str, config: "AgentConfig") -> None:
        super().__init__()
        hidden_size, scale = config.hidden_size, config.image_scale
        self.keys = [leaf.key for leaf in spec.leaves]
        self.uses_grid = kind != "mlp" and any(leaf.is_grid for leaf in spec.leaves)
        if kind in ("simple_cnn", "nature_cnn") and not self.uses_grid:
            raise ConfigError(
                f"agent {kind} needs an observation with height, width and channels, but the "
                f"observations are {[(leaf.key, leaf.shape) for leaf in spec.leaves]}; use 'mlp'"
            )
        stems: list[GridStem | VectorStem] = [
            GridStem(leaf, kind, scale)
            if leaf.is_grid and kind != "mlp"
            else VectorStem(leaf, scale)
            for leaf in spec.leaves
        ]
        self.stems = nn.ModuleList(stems)
        self.has_categories = any(leaf.categories for leaf in spec.leaves)
        self.output_size = hidden_size
        size = sum(stem.output_size for stem in stems)
        activate = nn.ReLU if self.uses_grid else ACTIVATIONS[config.activation]
        layers: list[nn.Module] = []
        for _ in range(1 if self.uses_grid else config.num_layers):
            layers += [orthogonal(nn.Linear(size, hidden_size)), activate()]
            size = hidden_size
        self.dense = nn.Sequential(*layers)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features of leaves ``[B, ...]``."""
        parts = [stem(obs[key]) for key, stem in zip(self.keys, self.stems, strict=True)]
        if self.has_categories:
            parts = [part.to(self.dense[0].weight.dtype) for part in parts]
        features: Tensor = self.dense(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        return features
