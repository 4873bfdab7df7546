"""The torch calls of one forward, recorded once and made again without the Python around them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from metta.errors import ActorError

__all__ = ["RecordedCalls", "record_calls"]

_SHAPE_QUESTIONS = frozenset(
    {"__get__", "size", "dim", "ndimension", "numel", "nelement", "stride", "__len__", "is_contiguous",
     "is_floating_point", "is_complex", "element_size", "get_device"}
)  # fmt: skip
"""Calls whose answer is no tensor and follows from shapes and types, which stay."""
_INDEXING = ("__getitem__", "__setitem__")

Fill = tuple[list[Any], int, int]
"""A list of arguments, a place in it, and the number of the tensor that belongs there."""


class RecordedCalls:
    """A list of torch calls on given tensors; weights are the live ones.

    calls = record_calls(function, inputs)      # function(*inputs) -> a list of tensors
    outputs = calls.run(inputs)                 # the same calls on other values of the same shapes
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        # while they live, no other tensor has their identity
        self._alive: list[Tensor] = list(inputs)
        self._num_inputs = len(inputs)
        self._calls: list[
            tuple[Callable[..., Any], list[Any], dict[str, Any], list[Fill], Any]
        ] = []
        self._outputs: list[int] = []

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for other inputs."""
        values: list[Any] = [*inputs, *[None] * (len(self._numbers) - self._num_inputs)]
        for function, arguments, options, fills, places in self._calls:
            for owner, place, number in fills:
                owner[place] = values[number]
            result = function(*arguments, **options)
            if type(places) is int:
                values[places] = result
            elif places is not None:
                for number, part in zip(places, result, strict=True):
                    values[number] = part
            for owner, place, _ in fills:
                owner[place] = None
        return [values[number] for number in self._outputs]

    def add(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """Record one call; `ActorError` where its result is neither tensors nor a matter of shapes."""
        name = getattr(function, "__name__", str(function))
        is_list = isinstance(result, tuple | list) and all(isinstance(x, Tensor) for x in result)
        if not is_list and not isinstance(result, Tensor) and name != "__setitem__":
            if name in _SHAPE_QUESTIONS:
                return
            raise ActorError(f"{name} makes Python depend on the values of tensors")
        fills: list[Fill] = []
        arguments = self._template(list(args), fills, name)
        self._refuse_tensors(kwargs, name)
        # numbered last: what returns its own argument must not wait for itself
        places: Any = None
        if result is not None:
            places = [self._number(part) for part in result] if is_list else self._number(result)
        self._calls.append((function, arguments, kwargs, fills, places))

    def finish(self, outputs: Sequence[Tensor]) -> None:
        """Say which tensors are the result, and let go of all others."""
        self._outputs = [self._numbers.get(id(tensor), -1) for tensor in outputs]
        if -1 in self._outputs:
            raise ActorError("a result does not come from torch calls on the observation")
        self._alive.clear()

    def _number(self, tensor: Tensor) -> int:
        """The number of a result; in-place calls return a tensor that has one already."""
        self._alive.append(tensor)
        return self._numbers.setdefault(id(tensor), len(self._numbers))

    def _template(self, values: list[Any], fills: list[Fill], name: str) -> list[Any]:
        """Arguments with gaps where tensors of this forward go."""
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                if id(value) in self._numbers:
                    fills.append((values, place, self._numbers[id(value)]))
                    values[place] = None
            elif isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
                if name in _INDEXING:
                    raise ActorError("observations are indexed by tensors")
                values[place] = self._template(list(value), fills, name)
        return values

    def _refuse_tensors(self, options: dict[str, Any], name: str) -> None:
        """Named arguments are kept as they are, so no tensor of this forward may be among them."""
        given: list[Fill] = []
        self._template(list(options.values()), given, name)
        if given:
            raise ActorError(f"{name} is given a tensor by name")


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
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> RecordedCalls:
    """Run ``function(*inputs)`` once; `ActorError` where its calls depend on values of tensors."""
    calls = RecordedCalls(inputs)
    with _Recorder(calls):
        outputs = function(*inputs)
    calls.finish(outputs)
    return calls
