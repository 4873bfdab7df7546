"""Numbers that networks keep outside of tensors: constants of whatever is derived from them."""

from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["PLAIN", "plain_values"]

PLAIN = (bool, int, float, str, type(None))
_CONSTANT = (
    "torch.nn.modules.activation", "torch.nn.modules.linear", "torch.nn.modules.container",
    "torch.nn.modules.conv", "torch.nn.modules.flatten", "metta.agent.",
)  # fmt: skip
"""Where layers come from whose plain attributes nobody changes."""


def plain_values(root: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Every plain attribute and the mode of every part, and which parts, hooks and buffers there are.

    Equal before and after means that what was traced before is what Python would do now.
    """
    for number, module in enumerate(root.modules()):
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        yield number, id(module), module.training, hooks
        for name, buffer in module._buffers.items():
            yield number, name, id(buffer)
        if type(module).__module__.startswith(_CONSTANT):
            continue
        for name, value in vars(module).items():
            if isinstance(value, PLAIN):
                yield number, name, value
            elif isinstance(value, list | tuple) and all(isinstance(v, PLAIN) for v in value):
                yield number, name, *value
