"""An update as a function of tensors alone, read off `learn_minibatch`, so that it can be compiled.

The functions here are called by a tracer: whatever Python does in them happens once, and what remains is
the list of tensor operations. `flat_update` holds gradients, clipping and Adam; `gradients_only` ends
before the step, for optimizers of torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from metta.rl.collect.buffer import STATE_PREFIX
from metta.rl.learn.custom_losses import Metrics
from metta.rl.learn.driver import cut_minibatch
from metta.rl.learn.optimizer import AdamState, FlatAdam, adam_step
from metta.rl.learn.update import (
    Minibatch,
    UpdateCoefs,
    UpdateRules,
    add_gradients,
    is_empty,
    learn_minibatch,
)

__all__ = ["NUM_REPORTS", "TensorFunction", "flat_update", "gradients_only"]

NUM_REPORTS = 3
"""The leading outputs: losses, a flag, and metrics; gradients may follow."""
NUM_ADAM = 4
"""The leading inputs that `flat_update` changes: parameters, two moments, and the count of steps."""


@dataclass
class TensorFunction:
    """A function of tensors, and what its results are called; names are known once it has run."""

    call: Callable[..., tuple[Tensor, ...]]
    num_changed: int
    """How many of its leading inputs it changes in place."""
    sizes: list[int] = field(default_factory=list)
    """Numbers of each parameter in the flat vectors that it changes."""
    metric_names: list[str] = field(default_factory=list)
    without_gradient: list[int] = field(default_factory=list)
    """Parameters, by number, that the loss does not depend on."""


class _LeafStepper:
    """Gradients with respect to given leaves, and Adam on given vectors."""

    def __init__(self, leaves: Sequence[Tensor], state: AdamState | None, group: Any, rate: Any):
        self.leaves, self.state, self.group, self.rate = leaves, state, group, rate
        self.gradients: list[Tensor | None] = []
        self._flat: Tensor | None = None

    def zero_grad(self) -> None:
        self.gradients = [None] * len(self.leaves)

    def backward(self, total: Tensor) -> None:
        self._flat = None
        found = torch.autograd.grad(total, self.leaves, allow_unused=True)
        for index, (old, new) in enumerate(zip(self.gradients, found, strict=True)):
            self.gradients[index] = new if old is None else old if new is None else old + new

    def flat_gradient(self) -> Tensor:
        """All gradients ``[P]``."""
        if self._flat is None:
            pairs = zip(self.gradients, self.leaves, strict=True)
            self._flat = torch.cat(
                [(torch.zeros_like(leaf) if g is None else g).reshape(-1) for g, leaf in pairs]
            )
        return self._flat

    def grad_norm(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.flat_gradient())
        return norm

    @torch.no_grad()
    def apply(self, scale: Tensor, ok: Tensor) -> None:
        assert self.state is not None
        state = self.state._replace(gradient=self.flat_gradient())
        adam_step(state, self.group, self.rate, scale, ok)


def flat_update(rules: UpdateRules, optimizer: FlatAdam, names: Sequence[str]) -> TensorFunction:
    """One minibatch, with its step.

        call(flat, exp_avg, exp_avg_sq, step_count, rate, stopped, index, *coefs, *columns)

    `index` ``[B]`` selects its samples; columns come in the order of `names`. Returns a row ``[10]``,
    whether the update has stopped, and metrics ``[pieces, K]``.
    """
    parameters, group = optimizer.parameters, dict(optimizer.param_groups[0])
    sizes = [parameter.numel() for parameter in parameters]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        flat, exp_avg, exp_avg_sq, count, rate, stopped, index, *rest = tensors
        coefs, columns = _named(rules, names, rest)
        pairs = zip(flat.split(sizes), parameters, strict=True)
        leaves = [piece.view(p.shape).detach().requires_grad_() for piece, p in pairs]
        state = AdamState(flat, flat, exp_avg, exp_avg_sq, count)
        stepper = _LeafStepper(leaves, state, group, rate)
        with _parameters_replaced(rules, parameters, leaves):
            batch = _cut(columns, index, rules)
            row, stopped, metrics = learn_minibatch(rules, stepper, batch, coefs, stopped)
        return row, stopped, _as_matrix(made, metrics, flat)

    made = TensorFunction(call, NUM_ADAM, sizes)
    return made


def gradients_only(
    rules: UpdateRules, parameters: Sequence[nn.Parameter], names: Sequence[str]
) -> TensorFunction:
    """The gradients of one minibatch.

        call(index, *coefs, *columns, *parameters)

    Returns loss terms ``[6]``, whether no sample counts, metrics ``[pieces, K]``, and gradients.
    """

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors[len(tensors) - len(parameters) :]
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        coefs, columns = _named(rules, names, tensors[1 : len(tensors) - len(parameters)])
        stepper = _LeafStepper(leaves, None, None, None)
        with _parameters_replaced(rules, parameters, leaves):
            batch = _cut(columns, tensors[0], rules)
            terms, metrics = add_gradients(rules, stepper, batch, coefs)
        found = enumerate(stepper.gradients)
        made.without_gradient = [index for index, g in found if g is None]
        gradients = [g for g in stepper.gradients if g is not None]
        return terms, is_empty(batch), _as_matrix(made, metrics, terms), *gradients

    made = TensorFunction(call, 0)
    return made


def _cut(columns: Mapping[str, Tensor], items: Tensor, rules: UpdateRules) -> Minibatch:
    """Samples of every column; states are found by their prefix."""
    names = [name for name in columns if not name.startswith(STATE_PREFIX)]
    return cut_minibatch(columns, names, items, rules.policy)


def coef_tensors(coefs: UpdateCoefs) -> list[Tensor]:
    """The coefficients as `_named` takes them back."""
    return [coefs.custom, *(c for c in coefs[:4] if c is not None)]


def _named(
    rules: UpdateRules, names: Sequence[str], tensors: Sequence[Tensor]
) -> tuple[UpdateCoefs, Mapping[str, Tensor]]:
    """Coefficients and columns from their flat order."""
    custom, clip, value, entropy, *rest = tensors
    clips = rules.config.vf_clip_coef is not None
    value_clip = rest[0] if clips else None
    columns = dict(zip(names, rest[clips:], strict=True))
    return UpdateCoefs(clip, value, entropy, value_clip, custom), columns


def _as_matrix(function: TensorFunction, metrics: Sequence[Metrics], like: Tensor) -> Tensor:
    """Metrics of all pieces ``[pieces, K]``; their names are kept with the function."""
    function.metric_names = list(metrics[0]) if metrics else []
    if not metrics:
        return like.new_zeros(0)
    rows = [
        torch.stack([torch.as_tensor(value).detach().to(like) for value in piece.values()])
        for piece in metrics
    ]
    return torch.stack(rows)


@contextmanager
def _parameters_replaced(
    rules: UpdateRules, parameters: Sequence[nn.Parameter], leaves: Sequence[Tensor]
) -> Iterator[None]:
    """Let the policy, and losses that are modules, compute with other tensors for a while."""
    replacements = dict(zip(map(id, parameters), leaves, strict=True))
    roots = [rules.policy, *(c.fn for c in rules.custom if isinstance(c.fn, nn.Module))]
    places = {
        (id(module), name): (module, name, parameter)
        for root in roots
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if id(parameter) in replacements
    }
    try:
        for module, name, parameter in places.values():
            module._parameters[name] = replacements[id(parameter)]  # type: ignore[assignment]  # reason: torch's own stateless call does so
        yield
    finally:
        for module, name, parameter in places.values():
            module._parameters[name] = parameter
