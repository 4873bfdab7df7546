"""A network's action branch as a list of NumPy calls, read off its traced graph.

For small networks torch spends most of an action's time in its own overhead. This module traces the
module, keeps only what the distribution parameters depend on (the critic falls away), and runs it with
preallocated arrays. Any operation it does not know raises `ActorError`: the caller then acts eagerly.
"""

import copy
from typing import Any, Literal

import numpy as np
from torch import fx, nn

from metta.agent.actors.numpy_steps import (
    FUNCTIONS,
    LAYERS,
    METHODS,
    Step,
    Values,
    call_step,
    constant_step,
)
from metta.agent.output import PolicyOutput
from metta.errors import ActorError

__all__ = ["NumpyProgram", "refuse_hooks"]


class NumpyProgram:
    """Runs the action branch of a feed-forward module for a fixed number of rows.

    program = NumpyProgram(module, {"obs": array})
    params = program.run({"obs": array})        # [n, P], valid until the next run

    Numbers that the module keeps as plain Python attributes are constants of its trace: after such a
    change a new program is needed. Weights and buffers are copied by `refresh`.
    """

    def __init__(
        self, module: nn.Module, example: Any, branch: Literal["action", "value"] = "action"
    ) -> None:
        self.module = module
        try:
            # a copy, since tracing may leave its placeholders and constants in the module
            self._traced = copy.deepcopy(module).eval()
            self.graph = fx.Tracer().trace(self._traced)
        except Exception as error:  # users' code: whatever it raises means "not traceable"
            raise ActorError(f"the module cannot be traced: {error}") from error
        _refuse_in_place(self.graph, self._traced)
        self.output = _output_node(self.graph, branch)
        self.nodes = _needed(self.graph, self.output)
        self._example = example
        self.refresh()

    def refresh(self) -> None:
        """Copy the module's present weights."""
        refuse_hooks(self.module)
        steps: list[Step] = []
        values: Values = {}
        for node in self.nodes:
            if node.op == "placeholder":
                self.input = node
                values[node] = self._example
                continue
            try:
                step = self._compile(node, values)
                step(values)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise ActorError(f"operation {node.target} has no NumPy form: {error}") from error
            _refuse_wide_floats(node, values[node])
            steps.append(step)
        self.steps, self.values = steps, values

    def run(self, obs: Any) -> np.ndarray:
        """Distribution parameters ``[n, P]`` of observations in the module's own nesting."""
        values = self.values
        values[self.input] = obs
        for step in self.steps:
            step(values)
        params: np.ndarray = values[self.output]
        return params

    def _compile(self, node: fx.Node, values: Values) -> Step:
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            builder = LAYERS.get(type(layer))
            if builder is None:
                raise ActorError(f"layer {type(layer).__name__} has no NumPy form")
            refuse_hooks(layer)
            source = node.args[0]
            if not isinstance(source, fx.Node):
                raise ActorError(f"layer {node.target} is not called on a tensor")
            return builder(layer, node, source, values)
        if node.op == "get_attr":
            return constant_step(node, self.attribute(str(node.target)))
        known: dict[Any, Any] = METHODS if node.op == "call_method" else FUNCTIONS
        function = known.get(node.target)
        if function is None:
            raise ActorError(f"operation {node.target} has no NumPy form")
        return call_step(node, function)

    def attribute(self, path: str) -> Any:
        """A weight, buffer or constant of the module, as it is now."""
        owner, _, name = path.rpartition(".")
        part = self.module.get_submodule(owner)
        # constants that appeared while tracing exist only in the traced copy
        return getattr(part if hasattr(part, name) else self._traced.get_submodule(owner), name)


def _output_node(graph: fx.Graph, branch: Literal["action", "value"]) -> fx.Node:
    """Where the distribution parameters come out, or the values."""
    place = 0 if branch == "action" else 1
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    if isinstance(result, fx.Node) and result.target is PolicyOutput:
        # a NamedTuple is a call in the graph
        fields = dict(zip(PolicyOutput._fields, result.args, strict=False)) | result.kwargs
        result = fields["dist_params" if branch == "action" else "value"]
    elif isinstance(result, tuple) and len(result) == 2:
        result = result[place]
    elif isinstance(result, dict) and "action_logits" in result:
        result = result["action_logits" if branch == "action" else "value"]
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
        raise ActorError("the action parameters depend on more, or on less, than the observation")
    return nodes


def _refuse_in_place(graph: fx.Graph, module: nn.Module) -> None:
    """In-place operations act on tensors that others read, which the graph does not show."""
    for node in graph.nodes:
        name = str(node.target)
        layer = module.get_submodule(name) if node.op == "call_module" else None
        overwrites = node.kwargs.get("inplace", False) or getattr(layer, "inplace", False)
        shared = any(len(source.users) > 1 for source in node.all_input_nodes)
        if (overwrites and shared) or (node.op == "call_method" and name.endswith("_")):
            raise ActorError(f"operation {name} works in place on what others read")


def refuse_hooks(part: nn.Module) -> None:
    """`ActorError` where a module has forward hooks."""
    if part._forward_hooks or part._forward_pre_hooks:
        raise ActorError(f"{type(part).__name__} has forward hooks, which only torch runs")


def _refuse_wide_floats(node: fx.Node, value: Any) -> None:
    """Where NumPy's promotion differs from torch's, a float64 appears in a float32 network."""
    if getattr(value, "dtype", None) == np.float64:
        raise ActorError(f"operation {node.target} gives float64")
