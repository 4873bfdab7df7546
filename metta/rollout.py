"""`Rollout`: columns of experience that know where they came from."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["Rollout"]


class Rollout(dict[str, Tensor]):
    """Columns of a rollout and where they came from.

    `torch.save` writes it as an `OrderedDict` of tensors that keeps the manifest as an attribute, which
    ``torch.load(path, weights_only=True)`` reads without metta.
    """

    def __init__(
        self, columns: Mapping[str, Tensor], manifest: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(columns)
        self.manifest: dict[str, Any] = dict(manifest or {})
        """Policy and config hashes, environment, seed, versions; empty if unknown."""

    def __reduce__(self) -> Any:
        return OrderedDict, (), {"manifest": self.manifest}, None, iter(self.items())
