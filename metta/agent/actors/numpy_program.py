"""A network's action branch as a list of NumPy calls, made of its recorded torch calls.

For small networks torch spends most of an action's time in its own overhead. Only calls are kept
that the action depends on (the critic is dropped). Any operation without a NumPy form raises `ActorError`:
the caller then uses another actor, and silences floating-point warnings.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.agent.actors.recorded_calls import (
    Call,
    RecordedCalls,
    Ref,
    Step,
    make_step,
    refs_in,
    run_steps,
)
from metta.errors import ActorError

__all__ = ["NumpyProgram", "calls_behind"]


def calls_behind(recorded: RecordedCalls, output: int) -> list[Call]:
    """The calls that an output depends on, in order."""
    wanted, found = {output}, []
    for call in reversed(recorded.calls):
        if call.results is None or (call.name.endswith("_") and not call.name.endswith("__")):
            raise ActorError(f"operation {call.name} works in place")
        results = call.results if isinstance(call.results, list) else [call.results]
        if wanted.intersection(results):
            wanted.update(refs_in(call.args))
            found.append(call)
    return found[::-1]


class NumpyProgram:
    """Runs the calls behind one output, for the number of rows that was recorded.

    program = NumpyProgram(recorded, recorded.outputs[0], [array])
    params = program.run([array])        # one array for each recorded input

    Numbers that the module keeps as plain Python attributes are constants of the recorded calls. Weights
    and buffers are copied by `refresh`, and what is computed of them alone is computed there, by torch.
    """

    def __init__(self, recorded: RecordedCalls, output: int, example: Sequence[np.ndarray]) -> None:
        self._size, self._output = len(recorded.layouts), output
        self._fixed: list[Step] = []
        self._calls: list[Call] = []
        varies = set(recorded.inputs)
        for call in calls_behind(recorded, output):
            if varies.isdisjoint(refs_in(call.args)):
                self._fixed.append(make_step(call.function, call.args, call.options, call.results))
                continue
            if call.name not in _FORMS or not isinstance(call.results, int):
                raise ActorError(f"operation {call.name} has no NumPy form")
            varies.add(call.results)
            self._calls.append(call)
        self.refresh()
        self._try(example)

    def refresh(self) -> None:
        """Copy the present weights."""
        fixed: list[Any] = [None] * self._size
        with torch.no_grad():
            run_steps(self._fixed, fixed)
        self._values: list[Any] = [
            _array(value) if isinstance(value, Tensor) else None for value in fixed
        ]
        self._steps = [
            make_step(_FORMS[call.name], self._arguments(call), call.options, call.results)
            for call in self._calls
        ]

    def run(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The output, of one array for each recorded input."""
        values = self._values
        values[: len(inputs)] = inputs
        run_steps(self._steps, values)
        output: np.ndarray = values[self._output]
        return output

    def _arguments(self, call: Call) -> list[Any]:
        """Arguments of the NumPy form: arrays instead of tensors, weights of layers transposed."""
        if call.name != "linear":
            return _with_arrays(call.args)
        source, weight, *bias = call.args
        matrix = self._values[weight.number] if isinstance(weight, Ref) else weight.detach().numpy()
        return [source, np.array(matrix.T, order="C"), *_with_arrays(bias)]

    def _try(self, example: Sequence[np.ndarray]) -> None:
        """`ActorError` if a step fails, or if NumPy returns float64 where torch does not."""
        self._values[: len(example)] = example
        for call, step in zip(self._calls, self._steps, strict=True):
            try:
                run_steps([step], self._values)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise ActorError(f"operation {call.name} has no NumPy form: {error}") from error
            if getattr(self._values[call.results], "dtype", None) == np.float64:
                raise ActorError(f"operation {call.name} gives float64")


def _with_arrays(arguments: list[Any]) -> list[Any]:
    return [
        _with_arrays(value)
        if isinstance(value, list)
        else _array(value)
        if isinstance(value, Tensor)
        else value
        for value in arguments
    ]


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().numpy().copy()
    return array


# --- NumPy forms, by the names of torch's functions and methods ------------------------------------------


def _linear(array: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    result: np.ndarray = np.matmul(array, weight)
    return result if bias is None else np.add(result, bias, out=result)


def _relu(array: np.ndarray, inplace: bool = False) -> np.ndarray:  # noqa: ARG001 (torch's signature)
    result: np.ndarray = np.maximum(array, 0)
    return result


def _sigmoid(array: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.negative(array)
    np.exp(result, out=result)
    np.add(result, 1, out=result)
    np.reciprocal(result, out=result)
    return result


def _silu(array: np.ndarray, inplace: bool = False) -> np.ndarray:  # noqa: ARG001 (torch's signature)
    result = _sigmoid(array)
    np.multiply(result, array, out=result)
    return result


def _elu(array: np.ndarray, alpha: float = 1.0, inplace: bool = False) -> np.ndarray:  # noqa: ARG001 (torch's signature)
    below = np.expm1(np.minimum(array, 0))
    np.multiply(below, alpha, out=below)
    return np.where(array > 0, array, below)


def _dropout(array: np.ndarray, *_: Any, training: bool = True, **__: Any) -> np.ndarray:
    if training:
        raise ValueError("it applies dropout while acting too")
    return array


def _flatten(array: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    last = end_dim % array.ndim
    return array.reshape(*array.shape[:start_dim], -1, *array.shape[last + 1 :])


def _to(array: np.ndarray, dtype: Any) -> np.ndarray:
    if isinstance(dtype, torch.dtype):
        dtype = torch.empty(0, dtype=dtype).numpy().dtype
    return array.astype(dtype, copy=False)


_FORMS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "tanh": np.tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "elu": _elu,
    "dropout": _dropout,
    "add": operator.add,
    "sub": operator.sub,
    "__rsub__": lambda array, other: other - array,
    "mul": operator.mul,
    "div": operator.truediv,
    "__rdiv__": lambda array, other: other / array,
    "eq": np.equal,
    "where": np.where,
    "cat": lambda arrays, dim=0: np.concatenate(arrays, dim),
    "flatten": _flatten,
    "squeeze": lambda array, dim: np.squeeze(array, dim),
    "unsqueeze": lambda array, dim: np.expand_dims(array, dim),
    "index_select": lambda array, dim, index: np.take(array, index, dim),
    "__getitem__": operator.getitem,
    "expand_as": lambda array, other: np.broadcast_to(array, other.shape),
    "to": _to,
    "float": lambda array: array.astype(np.float32, copy=False),
}
