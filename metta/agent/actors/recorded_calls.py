"""The torch calls of one forward, recorded once; `TracedActor` repeats them, other actors read them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from metta.agent.evaluation_mode import evaluating, parts_of
from metta.errors import ActorError, MettaError

__all__ = [
    "Call",
    "RecordedCalls",
    "Ref",
    "Step",
    "make_step",
    "record_calls",
    "refs_in",
    "refuse_hooks",
    "run_steps",
]

_SHAPE_QUESTIONS = frozenset(
    {"__get__", "size", "dim", "ndimension", "numel", "nelement", "stride", "__len__", "is_contiguous",
     "is_floating_point", "is_complex", "element_size", "get_device"}
)  # fmt: skip
"""Calls that return no tensor; their result depends only on shapes and types, which stay."""
_INDEXING = ("__getitem__", "__setitem__")


class Ref(NamedTuple):
    """Placeholder for a tensor of the forward among the arguments of a call."""

    number: int


class Call(NamedTuple):
    """One torch call; tensors among its arguments are live weights, buffers and constants."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]
    results: Any
    """The number of its result, a list of numbers, or None."""


class Step(NamedTuple):
    """A recorded call, ready to be repeated."""

    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]
    fills: list[tuple[list[Any], int, int]]
    """A list of arguments, a place in it, and the number of the value that belongs there."""
    results: Any


def make_step(
    function: Callable[..., Any], args: list[Any], options: dict[str, Any], results: Any
) -> Step:
    """A step with gaps among its arguments in place of each `Ref`."""
    fills: list[tuple[list[Any], int, int]] = []

    def with_gaps(values: list[Any]) -> list[Any]:
        copied = list(values)
        for place, value in enumerate(values):
            if isinstance(value, Ref):
                fills.append((copied, place, value.number))
                copied[place] = None
            elif isinstance(value, list):
                copied[place] = with_gaps(value)
        return copied

    return Step(function, with_gaps(args), options, fills, results)


def run_steps(steps: Sequence[Step], values: list[Any]) -> None:
    """Make calls one after the other; `values` has a place for each number."""
    for function, arguments, options, fills, results in steps:
        for owner, place, number in fills:
            owner[place] = values[number]
        result = function(*arguments, **options)
        if type(results) is int:
            values[results] = result
        elif results is not None:
            for number, part in zip(results, result, strict=True):
                values[number] = part
        for owner, place, _ in fills:
            owner[place] = None


class RecordedCalls:
    """A list of torch calls on given tensors; weights are the live ones.

    calls = record_calls(network, function, inputs)      # function(*inputs) -> a list of tensors
    outputs = calls.run(inputs)                          # on other values of the same shapes
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.calls: list[Call] = []
        self.inputs = range(len(inputs))
        self.outputs: list[int] = []
        self.layouts: list[tuple[torch.Size, torch.dtype]] = []
        """Shape and type of each numbered tensor."""
        self._numbers: dict[int, int] = {}
        # while they live, no other tensor has their identity
        self._alive: list[Tensor] = []
        for tensor in inputs:
            self._number(tensor)
        self._steps: list[Step] = []

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for other inputs."""
        values: list[Any] = [*inputs, *[None] * (len(self.layouts) - len(inputs))]
        run_steps(self._steps, values)
        return [values[number] for number in self.outputs]

    def add(
        self, function: Callable[..., Any], args: Any, options: dict[str, Any], result: Any
    ) -> None:
        """Record one call; `ActorError` if its result is neither tensors nor depends only on shapes."""
        name = getattr(function, "__name__", str(function))
        is_list = isinstance(result, tuple | list) and all(isinstance(x, Tensor) for x in result)
        if not is_list and not isinstance(result, Tensor) and name != "__setitem__":
            if name in _SHAPE_QUESTIONS:
                return
            raise ActorError(f"{name} makes Python depend on the values of tensors")
        arguments = self._with_refs(args, name)
        if [*refs_in(self._with_refs(options.values(), name))]:
            raise ActorError(f"{name} is given a tensor by name")
        # numbered last: what returns its own argument must not wait for itself
        results: Any = None
        if result is not None:
            results = [self._number(part) for part in result] if is_list else self._number(result)
        self.calls.append(Call(name, function, arguments, options, results))

    def finish(self, outputs: Sequence[Tensor]) -> None:
        """Set which tensors are the result, and release all others."""
        self.outputs = [self._numbers.get(id(tensor), -1) for tensor in outputs]
        if -1 in self.outputs:
            raise ActorError("a result does not come from torch calls on the observation")
        self._alive.clear()
        self._steps = [make_step(c.function, c.args, c.options, c.results) for c in self.calls]

    def _number(self, tensor: Tensor) -> int:
        """The number of a result; in-place calls return a tensor that has one already."""
        self._alive.append(tensor)
        number = self._numbers.setdefault(id(tensor), len(self.layouts))
        if number == len(self.layouts):
            self.layouts.append((tensor.shape, tensor.dtype))
        return number

    def _with_refs(self, values: Any, name: str) -> list[Any]:
        """Arguments with a `Ref` for each tensor of this forward."""
        found: list[Any] = []
        for value in values:
            if isinstance(value, Tensor) and id(value) in self._numbers:
                found.append(Ref(self._numbers[id(value)]))
            elif isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
                if name in _INDEXING:
                    raise ActorError("observations are indexed by tensors")
                found.append(self._with_refs(value, name))
            else:
                found.append(value)
        return found


def refs_in(arguments: list[Any]) -> Iterator[int]:
    """The numbers of all tensors of the forward among a call's arguments."""
    for value in arguments:
        if isinstance(value, Ref):
            yield value.number
        elif isinstance(value, list):
            yield from refs_in(value)


class _Recorder(TorchFunctionMode):
    def __init__(self, calls: RecordedCalls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make the call and record it."""
        result = func(*args, **(kwargs or {}))
        self._calls.add(func, args, kwargs or {}, result)
        return result


def record_calls(
    network: nn.Module, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> RecordedCalls:
    """Run ``function(*inputs)`` once, with the network that it calls in evaluation mode.

    `ActorError` where its calls depend on values of tensors, or where a part has hooks.
    """
    refuse_hooks(network)
    calls = RecordedCalls(inputs)
    with torch.no_grad(), evaluating(network), torch.random.fork_rng(devices=[]):
        try:
            with _Recorder(calls):
                outputs = function(*inputs)
        except MettaError:
            raise
        except Exception as error:  # users' code: whatever it raises means "not traceable"
            raise ActorError(f"the module cannot be traced: {error}") from error
    calls.finish(outputs)
    return calls


def refuse_hooks(network: nn.Module) -> None:
    """`ActorError` where a part of the network has forward hooks."""
    for part in parts_of(network):
        if part._forward_hooks or part._forward_pre_hooks:
            raise ActorError(f"{type(part).__name__} has forward hooks, which only torch runs")
