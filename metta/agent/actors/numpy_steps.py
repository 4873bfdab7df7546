"""Layers and operations of torch that have a NumPy form: steps of a `NumpyProgram`.

Floating-point warnings are the program's to silence: like torch, these overflow to infinity.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn

__all__ = ["FUNCTIONS", "LAYERS", "METHODS", "Step", "Values", "call_step", "constant_step"]

Values = dict[fx.Node, Any]
Step = Callable[[Values], None]


def call_step(node: fx.Node, function: Callable[..., Any]) -> Step:
    """Calls a function on what the node's arguments hold."""
    arguments, options = node.args, node.kwargs

    def step(values: Values) -> None:
        found = fx.map_arg(arguments, values.__getitem__)
        values[node] = function(*found, **fx.map_arg(options, values.__getitem__))

    return step


def constant_step(node: fx.Node, value: Any) -> Step:
    """Puts a copy of a weight or buffer in place."""
    array = _array(value) if isinstance(value, torch.Tensor) else value

    def step(values: Values) -> None:
        values[node] = array

    return step


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy().copy()
    return array


def _linear(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:
    assert isinstance(layer, nn.Linear)
    weight = np.ascontiguousarray(_array(layer.weight).T)
    bias = None if layer.bias is None else _array(layer.bias)
    rows = np.shape(values[source])[:-1]
    out = np.empty((*rows, layer.out_features), weight.dtype)

    def step(values: Values) -> None:
        np.matmul(values[source], weight, out=out)
        if bias is not None:
            np.add(out, bias, out=out)
        values[node] = out

    return step


def _elementwise(function: Callable[..., Any]) -> Callable[..., Step]:
    def build(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:  # noqa: ARG001 (signature of builders)
        out = np.empty_like(values[source])

        def step(values: Values) -> None:
            values[node] = function(values[source], out=out)

        return step

    return build


def _relu(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    result: np.ndarray = np.maximum(array, 0, out=out)
    return result


def _sigmoid(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    result: np.ndarray = np.negative(array, out=out)
    np.exp(result, out=result)
    np.add(result, 1, out=result)
    np.reciprocal(result, out=result)
    return result


def _silu(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    result = _sigmoid(array, out)
    np.multiply(result, array, out=result)
    return result


def _elu(array: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    below = np.expm1(np.minimum(array, 0))
    np.multiply(below, alpha, out=below)
    return np.where(array > 0, array, below)


def _elu_layer(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:  # noqa: ARG001 (signature of builders)
    assert isinstance(layer, nn.ELU)
    alpha = layer.alpha
    return _call_with(node, source, lambda array: _elu(array, alpha))


def _identity(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:  # noqa: ARG001 (signature of builders)
    return _call_with(node, source, lambda array: array)


def _flatten_layer(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:  # noqa: ARG001 (signature of builders)
    assert isinstance(layer, nn.Flatten)
    start, end = layer.start_dim, layer.end_dim
    return _call_with(node, source, lambda array: _flatten(array, start, end))


def _call_with(node: fx.Node, source: Any, function: Callable[[Any], Any]) -> Step:
    def step(values: Values) -> None:
        values[node] = function(values[source])

    return step


def _flatten(array: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    last = end_dim % array.ndim
    return array.reshape(*array.shape[:start_dim], -1, *array.shape[last + 1 :])


def _concatenate(arrays: Any, dim: int = 0) -> np.ndarray:
    return np.concatenate(arrays, dim)


def _unsqueeze(array: np.ndarray, dim: int) -> np.ndarray:
    return np.expand_dims(array, dim)


def _without_inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's functional form of a layer, which always passes its `inplace` flag."""

    def call(array: np.ndarray, *, inplace: bool = False, **options: Any) -> Any:  # noqa: ARG001 (torch's signature)
        return function(array, **options)

    return call


def _to(array: np.ndarray, dtype: Any) -> np.ndarray:
    if isinstance(dtype, torch.dtype):
        dtype = torch.empty(0, dtype=dtype).numpy().dtype
    return array.astype(dtype, copy=False)


LAYERS: dict[type[nn.Module], Callable[[nn.Module, fx.Node, Any, Values], Step]] = {
    nn.Linear: _linear,
    nn.Tanh: _elementwise(np.tanh),
    nn.ReLU: _elementwise(_relu),
    nn.Sigmoid: _elementwise(_sigmoid),
    nn.SiLU: _elementwise(_silu),
    nn.ELU: _elu_layer,
    nn.Flatten: _flatten_layer,
    nn.Identity: _identity,
    nn.Dropout: _identity,  # acting is in evaluation mode
}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    getattr: getattr,
    operator.getitem: operator.getitem,
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.truediv: operator.truediv,
    torch.tanh: np.tanh,
    torch.relu: _relu,
    nn.functional.relu: _without_inplace(_relu),
    nn.functional.silu: _without_inplace(_silu),
    nn.functional.elu: _without_inplace(_elu),
    torch.sigmoid: _sigmoid,
    torch.flatten: _flatten,
    torch.cat: _concatenate,
    torch.eq: np.equal,
    torch.where: np.where,
}

METHODS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "flatten": _flatten,
    "unsqueeze": _unsqueeze,
    "squeeze": lambda array, dim: np.squeeze(array, dim),
    "index_select": lambda array, dim, index: np.take(array, index, dim),
    "to": _to,
    "float": lambda array: array.astype(np.float32, copy=False),
    "expand_as": lambda array, other: np.broadcast_to(array, other.shape),
}
