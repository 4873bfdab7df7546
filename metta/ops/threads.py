"""`threads_set`: torch's number of threads, which the last bits of sums and decompositions depend on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["threads_set"]


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Run a block with so many threads of torch, and put the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
