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
    in_training = [part for part in module.modules() if part.training]
    if in_training:
        module.eval()
    try:
        yield
    finally:
        for part in in_training:
            vars(part)["training"] = True  # past the checks of nn.Module, which take longer
