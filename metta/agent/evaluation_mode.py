"""Evaluation mode that is undone exactly, and the walk over parts that it needs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
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
    modes = [(part, part.training) for part in parts_of(module)]
    if any(_has_own_modes(part) for part, _ in modes):
        yield from _evaluating_by_call(module, modes)
        return
    # past the checks of nn.Module, which take longer
    for part, _ in modes:
        vars(part)["training"] = False
    try:
        yield
    finally:
        for part, training in modes:
            vars(part)["training"] = training


def _evaluating_by_call(module: nn.Module, modes: list[tuple[nn.Module, bool]]) -> Iterator[None]:
    """For networks that override what happens when their mode changes."""
    if any(training for _, training in modes):
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:  # parents come first, and may change the mode of their parts
            if _has_own_modes(part) and part.training != training:
                part.train(training)
            part.training = training


def _has_own_modes(part: nn.Module) -> bool:
    """Whether a mode is more than the attribute `training`; scripted parts keep theirs in C++."""
    kind, own = type(part), vars(part)
    is_plain = kind.train is nn.Module.train and kind.eval is nn.Module.eval
    is_plain = is_plain and "train" not in own and "eval" not in own
    return not is_plain or isinstance(part, torch.jit.ScriptModule)
