"""A network's action branch as a chain of layers, for the C kernels.

The chain is read off a `NumpyProgram`: observations, perhaps as one-hot codes, go through linear layers and
activations one after the other. Anything else raises `ActorError`: the caller then acts in another way.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from metta.agent.actors.numpy_program import NumpyProgram, refuse_hooks
from metta.errors import ActorError
from metta.spaces import ObsLeaf

try:
    import metta.agent._native as _native
except ImportError:  # installed without a compiler: other actors act
    _native = None

__all__ = ["CNetwork", "Chain", "chain_of", "native_available"]

_LINEAR, _TANH, _RELU, _SIGMOID, _SILU, _ELU = range(6)
_ACTIVATIONS: dict[Any, int] = {
    nn.Tanh: _TANH,
    torch.tanh: _TANH,
    "tanh": _TANH,
    nn.ReLU: _RELU,
    torch.relu: _RELU,
    nn.functional.relu: _RELU,
    "relu": _RELU,
    nn.Sigmoid: _SIGMOID,
    torch.sigmoid: _SIGMOID,
    "sigmoid": _SIGMOID,
    nn.SiLU: _SILU,
    nn.functional.silu: _SILU,
    nn.ELU: _ELU,
    nn.functional.elu: _ELU,
}
_RESHAPES = (nn.Flatten, nn.Identity, nn.Dropout, torch.flatten, "flatten", "unsqueeze", "squeeze")
_CASTS = ("to", "float")

Step = tuple[int, float, np.ndarray | None, np.ndarray | None]
"""(kind, alpha of ELU, weight, bias), as the C kernels take it."""


def native_available() -> bool:
    """Whether the C kernels of actors were built."""
    return _native is not None


@dataclass(frozen=True)
class Chain:
    """What the C kernels need to know of a network."""

    steps: list[Step]
    one_hot: bool
    """Whether the first layer sees discrete observations as one-hot codes."""
    tail: np.ndarray | None
    """``[K]`` constants behind the outputs of the last layer: log-deviations."""
    layers: list[nn.Linear] = field(default_factory=list)
    """The linear layers, whose memory the steps share."""

    @property
    def is_live(self) -> bool:
        """Whether the steps still hold the layers' own weights, and nothing that must be copied anew."""
        held = [(weight, bias) for _, _, weight, bias in self.steps if weight is not None]
        return self.tail is None and all(
            layer.weight.data_ptr() == _address(weight)
            and (bias is None or layer.bias.data_ptr() == _address(bias))
            for layer, (weight, bias) in zip(self.layers, held, strict=True)
        )

    @property
    def num_outputs(self) -> int:
        """Parameters that the layers give, without the tail."""
        widths = [len(weight) for _, _, weight, _ in self.steps if weight is not None]
        return widths[-1]


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class CNetwork:
    """A chain with its weights, copied into the memory of the C kernels.

    network = CNetwork(chain, leaf, moments=None, clip=10.0)
    network.forward(obs, params)                       # [n, ...] -> [n, P], without the tail
    network.sample(obs, actions, params, noise, mask)  # [n, ...] -> [n], for discrete actions

    Each call works in the network's own memory, under Python's lock: threads take turns. `capsule` is
    what environments with fused rollouts take, which run without the lock and need it for themselves.
    """

    def __init__(
        self,
        chain: Chain,
        leaf: ObsLeaf,
        moments: tuple[np.ndarray, np.ndarray] | None,
        clip: float,
        *,
        portable: bool = False,
    ) -> None:
        if _native is None:
            raise ActorError("the C kernels of actors were not built (metta.agent._native)")
        size = int(np.prod(leaf.shape, dtype=np.int64))
        firsts = np.array(leaf.starts, np.int64) if chain.one_hot else None
        categories = np.array(leaf.categories, np.int64) if chain.one_hot else None
        shift, scale = (None, None) if moments is None else map(np.ravel, moments)
        try:
            self.capsule: Any = _native.make(
                size, shift, scale, clip, firsts, categories, chain.steps, portable
            )
        except ValueError as error:
            raise ActorError(str(error)) from error
        self._forward, self._sample = _native.forward, _native.sample

    def forward(self, obs: np.ndarray, params: np.ndarray) -> None:
        """Write parameters ``[n, P]`` float32 of observations ``[n, ...]``."""
        self._forward(self.capsule, obs, params)

    def sample(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        params: np.ndarray,
        noise: np.ndarray,
        mask: np.ndarray | None,
    ) -> None:
        """Write parameters, and the actions ``[n]`` int64 that Gumbel noise ``[n, P]`` makes of them."""
        self._sample(self.capsule, obs, actions, params, noise, mask)


def chain_of(program: NumpyProgram, leaf: ObsLeaf) -> Chain:
    """The layers of a program, in order; `leaf` is the observation that it takes."""
    refuse_hooks(program.module)
    node, tail = _without_tail(program)
    steps: list[Step] = []
    layers: list[nn.Linear] = []
    one_hot = False
    while node.op != "placeholder":
        kind = _kind_of(program, node)
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            raise ActorError(f"operation {node.target} is not called on a tensor")
        if kind is torch.eq:
            one_hot, source = True, _coded(program, node, leaf)
        elif kind is nn.Linear:
            layers.append(_linear(program, node, source))
            steps.append(_step_of(layers[-1]))
        elif kind in _ACTIVATIONS:
            steps.append((_ACTIVATIONS[kind], _alpha(program, node), None, None))
        else:
            _require_unchanged(program, node, source, kind)
        node = source
    steps.reverse()
    layers.reverse()
    if not any(step[0] == _LINEAR for step in steps) or (one_hot and steps[0][0] != _LINEAR):
        raise ActorError("the action parameters do not come from linear layers")
    if leaf.kind == "discrete" and not one_hot and any(leaf.starts):
        raise ActorError("discrete observations that begin elsewhere than at 0 need one-hot codes")
    return Chain(steps, one_hot, tail, layers)


def _kind_of(program: NumpyProgram, node: fx.Node) -> Any:
    """The class of a layer, or the function or the name of the method that is called."""
    if node.op == "call_module":
        layer = program.module.get_submodule(str(node.target))
        refuse_hooks(layer)
        return type(layer)
    return node.target


def _without_tail(program: NumpyProgram) -> tuple[fx.Node, np.ndarray | None]:
    """The output of the last layer, and the constants that are put behind it."""
    node = program.output
    if node.target is not torch.cat:
        return node, None
    parts: Any = node.args[0]
    is_pair = isinstance(parts, list | tuple) and len(parts) == 2
    if is_pair and parts[1].target == "expand_as" and parts[1].args[0].op == "get_attr":
        constants = program.attribute(str(parts[1].args[0].target)).detach()
        width = program.values[parts[1]].shape[-1]
        return parts[0], constants.expand(width).float().numpy().copy()
    raise ActorError("operation cat joins what is no chain of layers")


def _linear(program: NumpyProgram, node: fx.Node, source: fx.Node) -> nn.Linear:
    layer = program.module.get_submodule(str(node.target))
    assert isinstance(layer, nn.Linear)
    if np.ndim(program.values[source]) != 2:
        raise ActorError(f"layer {node.target} is called on more than one vector per row")
    return layer


def _step_of(layer: nn.Linear) -> Step:
    weight = layer.weight.detach().contiguous().numpy()
    return _LINEAR, 0.0, weight, None if layer.bias is None else layer.bias.detach().numpy()


def _alpha(program: NumpyProgram, node: fx.Node) -> float:
    if node.op == "call_module":
        return float(getattr(program.module.get_submodule(str(node.target)), "alpha", 0.0))
    alpha: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("alpha", 1.0)
    return float(alpha)


def _coded(program: NumpyProgram, node: fx.Node, leaf: ObsLeaf) -> fx.Node:
    """What a one-hot code is made of; `ActorError` where it is no plain code of every element."""
    chosen: Any = node.args[0]
    expected = [(at, code) for at, n in enumerate(leaf.categories) for code in range(n)]
    if leaf.kind == "discrete" and getattr(chosen, "target", None) == "index_select":
        given: list[Any] = [chosen.args[2], node.args[1]]
        if all(isinstance(constant, fx.Node) for constant in given):
            elements, codes = (program.values[constant] for constant in given)
            if np.array_equal(np.stack([elements, codes], -1), expected):
                source: fx.Node = chosen.args[0]
                return source
    raise ActorError("operation eq is not the one-hot code of discrete observations")


def _require_unchanged(program: NumpyProgram, node: fx.Node, source: fx.Node, kind: Any) -> None:
    """Reshapes and casts are nothing to C, as long as each row keeps its numbers in their order."""
    after, before = program.values[node], program.values[source]
    name = getattr(kind, "__name__", kind)
    if kind in _CASTS:
        if after.dtype == np.float32:
            return
    elif kind in _RESHAPES and after.shape[0] == before.shape[0] and after.size == before.size:
        return
    raise ActorError(f"operation {name} has no C form")
