"""Calls recurrent modules: with their state as they have it, which metta keeps as rows ``[N, ...]``."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from metta.agent.module_output import read_output
from metta.agent.output import Obs, PolicyOutput, State
from metta.errors import PolicyError

__all__ = ["RecurrentModule", "is_recurrent_module"]

_STATE_ARGUMENTS = ("state", "states", "hidden", "hidden_state", "hx")
_FEW, _MORE = 3, 5
"""Numbers of rows that are compared to find the axis of a state that counts them."""

Nest = Callable[[Obs], Any]


def is_recurrent_module(module: nn.Module) -> bool:
    """Whether a module has ``initial_state``, or takes ``state`` after the observation."""
    names = _arguments(module)
    return hasattr(module, "initial_state") or (len(names) > 1 and names[1] in _STATE_ARGUMENTS)


def _arguments(module: nn.Module) -> list[str]:
    """Names of the positional arguments of ``forward``; ``*`` stands for any number of them."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [*names, *("*" for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL)]


class RecurrentModule:
    """A module with memory, called in the way it is written.

    Its state is a tensor, or a tuple or dict of tensors, in which one axis counts rows: ``[N, ...]``, or
    ``[layers, N, H]`` as `torch.nn.LSTM` has it. ``forward(obs, state, starts)`` sees whole sequences
    ``[T, N, ...]`` and forgets where ``starts`` is set; ``forward(obs, state)`` sees one step
    ``[1, N, ...]`` at a time, and what is to be forgotten is replaced before. Without
    ``initial_state(num_rows)`` it is called once with ``state=None``, and episodes begin with zeros of the
    shape that comes back.
    """

    def __init__(self, module: nn.Module, inputs: Callable[[int], Any]) -> None:
        """`inputs` gives observations of one step and so many rows, to learn the shape of the state."""
        self.module = module
        names = _arguments(module)
        self._takes_starts = len(names) > 2 or "*" in names
        self._is_given = hasattr(module, "initial_state")
        self._zeros: State = {}
        few, more = (self._first_state(rows, inputs) for rows in (_FEW, _MORE))
        self._kind: type = type(few)
        self._axes = {
            name: _row_axis(name, part, _named(more)[name]) for name, part in _named(few).items()
        }
        if not self._is_given:
            rows = self._rows(few)
            self._zeros = {name: torch.zeros_like(part[:1]) for name, part in rows.items()}

    def _first_state(self, num_rows: int, inputs: Callable[[int], Any]) -> Any:
        if self._is_given:
            return self.module.initial_state(num_rows)  # type: ignore[operator]  # reason: nn.Module attributes are typed Tensor | Module
        obs = inputs(num_rows)
        floats = next(self.module.parameters(), torch.empty(0))
        starts = torch.ones(1, num_rows, dtype=torch.bool, device=floats.device)
        state = read_output(self.module(obs, None, *([starts] if self._takes_starts else []))).state
        if not _named(state):
            raise PolicyError(
                f"{type(self.module).__name__} takes a state and returns none; return "
                "(logits, value, state), with the state after the last step"
            )
        return state

    def initial_state(self, num_rows: int, device: torch.device) -> State:
        """State of rows that have seen nothing."""
        if self._is_given:
            return self._rows(self.module.initial_state(num_rows))  # type: ignore[operator]  # reason: nn.Module attributes are typed Tensor | Module
        return {
            name: part.new_zeros((num_rows, *part.shape[1:]), device=device)
            for name, part in self._zeros.items()
        }

    def __call__(self, inputs: Obs, nest: Nest, state: State, starts: Tensor) -> PolicyOutput:
        """The output for sequences ``[T, N, ...]``, with the state after them."""
        if self._takes_starts:
            output = read_output(self.module(nest(inputs), self._own(state), starts))
            return output._replace(state=self._rows(output.state))
        outputs = []
        first = self.initial_state(starts.shape[1], starts.device)
        for step in range(len(starts)):
            state = {
                name: torch.where(_match(starts[step], part), first[name], part)
                for name, part in state.items()
            }
            obs = nest({key: leaf[step : step + 1] for key, leaf in inputs.items()})
            outputs.append(read_output(self.module(obs, self._own(state))))
            state = self._rows(outputs[-1].state)
        extras = outputs[-1].extras
        return PolicyOutput(
            torch.cat([output.dist_params for output in outputs]),
            torch.cat([output.value for output in outputs]),
            state,
            {name: _joined([output.extras[name] for output in outputs]) for name in extras},
        )

    def _rows(self, own: Any) -> State:
        """A state of the module as named rows."""
        axes = self._axes
        return {
            name: part.movedim(axes[name], 0) if axes.get(name) else part
            for name, part in _named(own).items()
        }

    def _own(self, state: State) -> Any:
        """Named rows as the module has them."""
        axes = self._axes
        parts = {
            name: part.movedim(0, axes[name]) if axes.get(name) else part
            for name, part in state.items()
        }
        if issubclass(self._kind, dict):
            return parts
        # cuDNN and the CPU kernels of torch.nn.LSTM want their state in one piece
        values = [part.contiguous() for part in parts.values()]
        return values[0] if issubclass(self._kind, Tensor) else tuple(values)


def _named(own: Any) -> State:
    """The tensors of a state, whatever holds them."""
    if own is None:
        return {}
    if isinstance(own, Tensor):
        return {"state": own}
    parts = own if isinstance(own, dict) else None
    if isinstance(own, tuple | list):
        parts = {str(number): part for number, part in enumerate(own)}
    if parts is None or not all(isinstance(part, Tensor) for part in parts.values()):
        raise PolicyError(
            f"the policy module has a {type(own).__name__} as its state; allowed is a tensor, or a "
            "tuple or a dict of tensors"
        )
    return parts


def _row_axis(name: str, few: Tensor, more: Tensor) -> int:
    """The axis of a part of the state that counts rows."""
    pairs = list(enumerate(zip(few.shape, more.shape, strict=False)))
    axes = [axis for axis, (one, other) in pairs if (one, other) == (_FEW, _MORE)]
    if few.dim() == more.dim() and len(axes) == 1:
        return axes[0]
    raise PolicyError(
        f"part {name!r} of the policy module's state has the shape {tuple(few.shape)} for {_FEW} rows and "
        f"{tuple(more.shape)} for {_MORE}; one axis must count rows. Observations are [T, N, ...], so "
        "torch.nn.LSTM and GRU are made without batch_first"
    )


def _match(flags: Tensor, part: Tensor) -> Tensor:
    """Flags ``[N]`` with as many axes as a part of the state."""
    return flags.reshape(-1, *(1,) * (part.dim() - 1))


def _joined(extras: list[Any]) -> Any:
    """Extras of single steps along T; what has no step is that of the last."""
    are_steps = all(isinstance(extra, Tensor) and extra.shape[:1] == (1,) for extra in extras)
    return torch.cat(extras) if are_steps else extras[-1]
