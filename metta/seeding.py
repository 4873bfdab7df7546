"""Derived randomness: every random number is a function of (seed, purpose, rank, epoch, index).

Nothing keeps a generator alive between phases, so an extra evaluation, log line or hook cannot shift
the numbers of training, and a resumed run needs no generator state, only its counters.
"""

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["derive_seed", "numpy_generator", "seed_torch"]

_SEED_BITS = 63


def derive_seed(seed: int, purpose: str, *, rank: int = 0, epoch: int = 0, index: int = 0) -> int:
    """A non-negative 63-bit seed, the same on every machine; any other argument gives another seed.

    `purpose` names the consumer ("noise", "minibatch", "env", ...); `index` distinguishes rows.
    """
    key = json.dumps([seed, purpose, rank, epoch, index]).encode()
    digest = hashlib.sha256(key).digest()
    return int.from_bytes(digest[:8], "little") >> (64 - _SEED_BITS)


def numpy_generator(
    seed: int, purpose: str, *, rank: int = 0, epoch: int = 0, index: int = 0
) -> np.random.Generator:
    """A fresh generator for one purpose in one phase."""
    return np.random.Generator(
        np.random.PCG64(derive_seed(seed, purpose, rank=rank, epoch=epoch, index=index))
    )


def seed_torch(seed: int, device: "torch.device") -> None:
    """Reseed torch's global generators, of the CPU and of one device.

    ``torch.manual_seed`` would also queue a call in every backend that is not initialized.
    """
    import torch  # configuration and worker processes come here without it

    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
