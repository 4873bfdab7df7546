"""The random generators that a whole process shares, left as they were."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["global_generators_kept"]


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Whatever environments and policies draw inside, those outside draw as if nothing had happened."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (kept, not used)
    torch: Any = sys.modules.get("torch")  # workers may do without it
    torch_state = None if torch is None else torch.get_rng_state()
    device_states: list[Any] = []
    if torch is not None and torch.cuda.is_initialized():
        device_states = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 (see above)
        if torch is not None:
            torch.set_rng_state(torch_state)
        if device_states:
            torch.cuda.set_rng_state_all(device_states)
