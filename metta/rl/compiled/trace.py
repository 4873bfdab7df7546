"""Tracing: a Python function of tensors as a graph of tensor operations, or a reason why not."""

import operator
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from metta.errors import DriverError
from metta.rl.compiled.rewrites import rewrite_of

__all__ = ["TracedGraph", "require_unchanged", "trace"]


@dataclass
class TracedGraph:
    """Tensor operations, and the tensors that they take besides the function's own inputs."""

    module: fx.GraphModule
    """Takes the function's inputs, then `held`."""
    held: list[Tensor]
    """Buffers, frozen parameters and constants; read anew at each call, since they change in place."""


def trace(function: Callable[..., Any], examples: Sequence[Tensor]) -> TracedGraph:
    """Record what a function does to tensors; the examples, and all that it holds, are not changed.

    A function that looks at the values of tensors (``if x > 0``, ``.item()``), draws random numbers or
    changes tensors that it holds cannot be recorded: `DriverError`.
    """
    copies = [tensor.detach().clone() for tensor in examples]
    recorder = _Recorder(copies)
    try:
        with recorder:
            outputs = function(*copies)
        require_unchanged(zip(recorder.held, recorder.held_before, strict=True))
    except DriverError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise DriverError(
            f"its operations cannot be recorded: {type(error).__name__}: {reason[0] if reason else ''}"
        ) from error
    finally:
        recorder.put_back()
    return recorder.finish(outputs)


def require_unchanged(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """`DriverError` if a tensor has changed."""
    for now, before in pairs:
        same = (now == before) | (now.isnan() & before.isnan())
        if not bool(same.all()):
            raise DriverError("the policy or a loss changes a buffer or its input in place")


class _Recorder(TorchDispatchMode):
    """Writes down every operation below autograd, so that backward passes are in it too.

    Lighter than `make_fx`, which loads a third of torch once more.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # reason: torch leaves it untyped
        self.graph = fx.Graph()
        self.held: list[Tensor] = []
        self.held_before: list[Tensor] = []
        """Copies of what is held, from before it was used."""
        # weak, so that recording takes no more memory than running
        self._nodes: MutableMapping[Tensor, fx.Node] = WeakTensorKeyDictionary()
        for number, tensor in enumerate(inputs):
            self._last_input = self.graph.placeholder(f"input_{number}")
            self._nodes[tensor] = self._last_input

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise DriverError("it looks at the value of a tensor (if, bool(), float() or .item())")
        options = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_certain(func, args, options):
            raise DriverError(f"it draws random numbers ({func}), as dropout does")
        rewrite = rewrite_of(func, args, options)
        if rewrite is not None:
            with self:
                return rewrite()
        nodes = tree_map(self._node_of, (args, options))
        result = func(*args, **options)
        written = self.graph.call_function(func, *nodes)
        if isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._nodes[part] = self.graph.call_function(
                        operator.getitem, (written, number)
                    )
        elif isinstance(result, Tensor):
            self._nodes[result] = written
        return result

    def put_back(self) -> None:
        """Give what is held the values that it had."""
        with torch.no_grad():
            for tensor, before in zip(self.held, self.held_before, strict=True):
                tensor.copy_(before)

    def finish(self, outputs: Sequence[Tensor]) -> TracedGraph:
        """The graph as a module, with `held` behind the inputs."""
        self.graph.output(tuple(self._node_of(tensor) for tensor in outputs))
        for node in self.graph.nodes:
            if node.target is torch.ops.aten.view.default:
                # the compiler may lay an operation's result out otherwise than eager torch does
                node.target = torch.ops.aten.reshape.default
        self.graph.eliminate_dead_code()
        return TracedGraph(fx.GraphModule(torch.nn.Module(), self.graph), self.held)

    def _node_of(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value not in self._nodes:
            if value.requires_grad:
                raise DriverError(
                    f"it computes with a parameter of shape {tuple(value.shape)} that is reached past the "
                    "modules of the policy and its losses (in a list, a closure or another optimizer), so "
                    "its gradient would be lost"
                )
            with self.graph.inserting_after(self._last_input):
                self._last_input = self.graph.placeholder(f"held_{len(self.held)}")
            self._nodes[value] = self._last_input
            self.held.append(value.detach())
            self.held_before.append(value.detach().clone())
        return self._nodes[value]


def _is_certain(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Attention draws random numbers only with dropout."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **options}
    return "dropout_p" in names and not given.get("dropout_p")
