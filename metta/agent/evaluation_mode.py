"""Evaluation mode that ends where it began."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode; afterwards every part is back in the mode it had.

        with evaluating(policy):
            output = policy(obs)

    Unlike ``train(was_training)`` this leaves parts frozen in evaluation mode as they were.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
