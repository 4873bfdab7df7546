"""A network's action branch as a list of NumPy calls, read off its traced graph.

For small networks torch spends most of an action's time in its own overhead. This module traces the
module, keeps only what the distribution parameters depend on (the critic falls away), and replays it with
preallocated arrays. Any operation it does not know raises `ActorError`: the caller then acts eagerly.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from metta.agent.output import PolicyOutput
from metta.errors import ActorError

__all__ = ["NumpyProgram"]

Values = dict[fx.Node, Any]
Step = Callable[[Values], None]


class NumpyProgram:
    """Replays the action branch of a feed-forward module for a fixed number of rows.

    program = NumpyProgram(module, {"obs": array})
    params = program.run({"obs": array})        # [n, P], valid until the next run
    """

    def __init__(self, module: nn.Module, example: Any) -> None:
        self.module = module
        try:
            self.graph = _ActionTracer().trace(module)
        except (
            Exception
        ) as error:  # tracing runs users' code: whatever it raises means "not traceable"
            raise ActorError(f"the module cannot be traced: {error}") from error
        self.output = _action_node(self.graph)
        self.nodes = _needed(self.graph, self.output)
        self._example = example
        self.refresh()

    def refresh(self) -> None:
        """Copy the module's present weights."""
        modules = dict(self.module.named_modules())
        values: Values = {}
        self.steps: list[Step] = []
        for node in self.nodes:
            if node.op == "placeholder":
                self.input = node
                values[node] = self._example
                continue
            step = _compile(node, modules, self.module, values)
            step(values)
            self.steps.append(step)
        self.values = values

    def run(self, obs: Any) -> np.ndarray:
        """Distribution parameters ``[n, P]`` of observations in the module's own nesting."""
        values = self.values
        values[self.input] = obs
        for step in self.steps:
            step(values)
        params: np.ndarray = values[self.output]
        return params


class _ActionTracer(fx.Tracer):
    """Records layers of `torch.nn` as they are and traces through everything else."""


def _action_node(graph: fx.Graph) -> fx.Node:
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    if isinstance(result, PolicyOutput):
        result = result.dist_params
    elif isinstance(result, tuple) and len(result) == 2:
        result = result[0]
    elif isinstance(result, dict) and "action_logits" in result:
        result = result["action_logits"]
    if not isinstance(result, fx.Node):
        raise ActorError("the module's output is not a pair, dict or PolicyOutput of tensors")
    return result


def _needed(graph: fx.Graph, output: fx.Node) -> list[fx.Node]:
    wanted, todo = set(), [output]
    while todo:
        node = todo.pop()
        if node not in wanted:
            wanted.add(node)
            todo += node.all_input_nodes
    nodes = [node for node in graph.nodes if node in wanted]
    if sum(node.op == "placeholder" for node in nodes) != 1:
        raise ActorError("the module takes more than the observation")
    return nodes


def _compile(node: fx.Node, modules: dict[str, nn.Module], root: nn.Module, values: Values) -> Step:
    if node.op == "call_module":
        layer = modules[str(node.target)]
        builder = _LAYERS.get(type(layer))
        if builder is None:
            raise ActorError(f"layer {type(layer).__name__} has no NumPy form")
        return builder(layer, node, node.args[0], values)
    if node.op == "get_attr":
        return _constant(node, _attribute(root, str(node.target)))
    function = _FUNCTIONS.get(node.target) if node.op != "call_method" else None
    if node.op == "call_method":
        function = _METHODS.get(str(node.target))
    if function is None or node.kwargs:
        raise ActorError(f"operation {node.target} has no NumPy form")
    return _call(node, function)


def _call(node: fx.Node, function: Callable[..., Any]) -> Step:
    arguments = node.args

    def step(values: Values) -> None:
        values[node] = function(*fx.map_arg(arguments, lambda used: values[used]))

    return step


def _constant(node: fx.Node, value: Any) -> Step:
    array = _array(value) if isinstance(value, torch.Tensor) else value

    def step(values: Values) -> None:
        values[node] = array

    return step


def _attribute(root: nn.Module, path: str) -> Any:
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name)
    return value


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


def _elu(layer: nn.Module, node: fx.Node, source: Any, values: Values) -> Step:
    assert isinstance(layer, nn.ELU)
    alpha = layer.alpha
    out = np.empty_like(values[source])

    def step(values: Values) -> None:
        array = values[source]
        np.expm1(np.minimum(array, 0, out=out), out=out)
        np.multiply(out, alpha, out=out)
        values[node] = np.where(array > 0, array, out)

    return step


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


def _flatten(array: np.ndarray, start: int = 0, end: int = -1) -> np.ndarray:
    last = end % array.ndim
    return array.reshape(*array.shape[:start], -1, *array.shape[last + 1 :])


def _concatenate(arrays: Any, axis: int = 0) -> np.ndarray:
    return np.concatenate(arrays, axis)


def _to(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return array.astype(torch.empty(0, dtype=dtype).numpy().dtype, copy=False)


_LAYERS: dict[type[nn.Module], Callable[[nn.Module, fx.Node, Any, Values], Step]] = {
    nn.Linear: _linear,
    nn.Tanh: _elementwise(np.tanh),
    nn.ReLU: _elementwise(_relu),
    nn.Sigmoid: _elementwise(_sigmoid),
    nn.SiLU: _elementwise(_silu),
    nn.ELU: _elu,
    nn.Flatten: _flatten_layer,
    nn.Identity: _identity,
    nn.Dropout: _identity,  # acting is in evaluation mode
}

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    operator.getitem: operator.getitem,
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.truediv: operator.truediv,
    torch.tanh: np.tanh,
    torch.relu: _relu,
    nn.functional.relu: _relu,
    torch.sigmoid: _sigmoid,
    torch.flatten: _flatten,
    torch.cat: _concatenate,
}

_METHODS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "flatten": _flatten,
    "to": _to,
    "float": lambda array: array.astype(np.float32, copy=False),
    "expand_as": lambda array, other: np.broadcast_to(array, other.shape),
}
