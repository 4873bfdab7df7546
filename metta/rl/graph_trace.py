"""Tracing: a Python function of tensors as a graph of tensor operations, or a reason why not."""

import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from metta.errors import DriverError

__all__ = ["TracedGraph", "trace"]

_FAST_TANH_RANGE = 7.90531110763549805
"""Beyond it the quotient would pass 1."""
_FAST_TANH_ABOVE = (
    4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08,
    -8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16,
)  # fmt: skip
_FAST_TANH_BELOW = (
    4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06,
)  # fmt: skip


@dataclass
class TracedGraph:
    """Tensor operations, and the tensors that they take besides the function's own inputs."""

    module: fx.GraphModule
    """Takes the function's inputs, then `held`."""
    held: list[Tensor]
    """Buffers, frozen parameters and constants; read anew at each call, since they change in place."""


def trace(function: Callable[..., Any], examples: Sequence[Tensor]) -> TracedGraph:
    """Record what a function does to tensors; the examples are left alone.

    A function that looks at the values of tensors (``if x > 0``, ``.item()``) or draws random numbers
    cannot be recorded: `DriverError`.
    """
    copies = [tensor.detach().clone() for tensor in examples]
    recorder = _Recorder(copies)
    try:
        with recorder:
            outputs = function(*copies)
    except DriverError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise DriverError(
            f"its operations cannot be recorded: {type(error).__name__}: {reason[0] if reason else ''}"
        ) from error
    return recorder.finish(outputs)


class _Recorder(TorchDispatchMode):
    """Writes down every operation below autograd, so that backward passes are in it too.

    Lighter than `make_fx`, which loads a third of torch once more.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # reason: torch leaves it untyped
        self.graph = fx.Graph()
        self.held: list[Tensor] = []
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
        if func is torch.ops.aten.tanh.default and _has_fast_tanh(args[0]):
            with self:
                return fast_tanh(args[0])
        result = func(*args, **options)
        written = self.graph.call_function(func, *tree_map(self._node_of, (args, options)))
        if isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._nodes[part] = self.graph.call_function(
                        operator.getitem, (written, number)
                    )
        elif isinstance(result, Tensor):
            self._nodes[result] = written
        return result

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
        return self._nodes[value]


def _is_certain(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Attention draws random numbers only where it drops something."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **options}
    return "dropout_p" in names and not given.get("dropout_p")


def fast_tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as a quotient of polynomials, to 2 units in the last place.

    Compiled, it takes a tenth of the time of an exponential.
    """
    x = x.clamp(-_FAST_TANH_RANGE, _FAST_TANH_RANGE)
    square = x * x
    return x * _polynomial(square, _FAST_TANH_ABOVE) / _polynomial(square, _FAST_TANH_BELOW)


def _has_fast_tanh(x: Tensor) -> bool:
    """Other types and devices have their own."""
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    *rest, last = coefficients
    result: Any = last
    for coefficient in reversed(rest):
        result = coefficient + x * result
    assert isinstance(result, Tensor)
    return result
