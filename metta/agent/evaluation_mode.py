"""Walks over the parts of a network that happen in every epoch."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating", "parts_of"]


def parts_of(root: nn.Module) -> list[nn.Module]:
    """The network and all of its parts, each once, as ``root.modules()`` but without their names."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [root]
    while waiting:
        part = waiting.pop()
        if part is not None and id(part) not in found:
            found[id(part)] = part
            waiting += reversed(part._modules.values())
    return list(found.values())


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode; afterwards every part is back in the mode it had.

        with evaluating(policy):
            output = policy(obs)

    Unlike ``train(was_training)`` this leaves parts frozen in evaluation mode as they were.
    """
    parts = parts_of(module)
    in_training = [part for part in parts if part.training]
    if any(_has_own_modes(part) for part in parts):
        module.eval()
    else:
        _set_modes(in_training, training=False)
    try:
        yield
    finally:
        _set_modes(in_training, training=True)


def _set_modes(parts: list[nn.Module], *, training: bool) -> None:
    for part in parts:
        vars(part)["training"] = training  # past the checks of nn.Module, which take longer


def _has_own_modes(part: nn.Module) -> bool:
    """Whether a class does something of its own when its mode changes."""
    kind = type(part)
    return kind.train is not nn.Module.train or kind.eval is not nn.Module.eval
