"""The random generators that a whole process shares, left as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["global_generators_kept"]


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Whatever environments and policies draw inside, those outside draw as if nothing had happened."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (kept, not used)
    torch_state = torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 (see above)
        torch.set_rng_state(torch_state)
        if device_states:
            torch.cuda.set_rng_state_all(device_states)
