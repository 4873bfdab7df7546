"""`CompiledDriver`: an update as machine code, made from the eager one and compared with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metta.agent.actors.plain_values import has_gradient_hooks, plain_values
from metta.errors import DriverError
from metta.rl.compiled.cache import CompiledGraph, compile_graph, compiler_name
from metta.rl.compiled.check import check_compiled, state_put_back
from metta.rl.compiled.trace import require_unchanged, trace
from metta.rl.compiled.update_graph import TensorFunction, coef_tensors, flat_update, gradients_only
from metta.rl.learn.custom_losses import Metrics
from metta.rl.learn.optimizer import FlatAdam, TorchStepper
from metta.rl.learn.update import UpdateCoefs, UpdateRules, finish_minibatch
from metta.rl.learn.update_log import UpdateLog

__all__ = ["Announce", "CompiledDriver", "python_state"]

Announce = Callable[[str], None]
Columns = Mapping[str, Tensor]


class _FlatProgram:
    """Everything up to and with the step of metta's own Adam."""

    def __init__(self, optimizer: FlatAdam) -> None:
        self._optimizer = optimizer
        self._state: list[Tensor] = []

    def function(self, rules: UpdateRules, names: Sequence[str]) -> TensorFunction:
        """What is to be compiled, for columns in this order."""
        return flat_update(rules, self._optimizer, names)

    def begin(self, device: torch.device) -> None:
        """Set the learning rate of this update."""
        adam, rate = self._optimizer.tensors, self._optimizer.param_groups[0]["lr"]
        moments = (adam.exp_avg, adam.exp_avg_sq, adam.step_count)
        self._state = [adam.flat, *moments, torch.tensor(rate, dtype=torch.float64, device=device)]

    def inputs(self, index: Tensor, stopped: Tensor, shared: Sequence[Tensor]) -> list[Tensor]:
        """Everything for one call; `shared` stays the same for a whole update."""
        return [*self._state, stopped, index, *shared]

    def finish(
        self,
        rules: UpdateRules,  # noqa: ARG002 (as below)
        function: TensorFunction,  # noqa: ARG002 (as below)
        outputs: Sequence[Tensor],
        stopped: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A row for the log, whether the update has stopped, and metrics."""
        row, stopped, metrics = outputs
        return row, stopped, metrics


class _GradientProgram:
    """Gradients alone; an optimizer of torch then steps, as it does eagerly."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepper = TorchStepper(optimizer)
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        self._parameters = [parameter for parameter in everything if parameter.requires_grad]

    def function(self, rules: UpdateRules, names: Sequence[str]) -> TensorFunction:
        return gradients_only(rules, self._parameters, names)

    def begin(self, device: torch.device) -> None:
        pass  # the optimizer has its own

    def inputs(
        self,
        index: Tensor,
        stopped: Tensor,  # noqa: ARG002 (as above)
        shared: Sequence[Tensor],
    ) -> list[Tensor]:
        return [index, *shared, *(parameter.detach() for parameter in self._parameters)]

    def finish(
        self,
        rules: UpdateRules,
        function: TensorFunction,
        outputs: Sequence[Tensor],
        stopped: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        terms, empty, metrics, *found = outputs
        gradients = iter(found)
        for number, parameter in enumerate(self._parameters):
            # a gradient of None and one of zeros are not the same to optimizers with momentum
            parameter.grad = None if number in function.without_gradient else next(gradients)
        row, stopped = finish_minibatch(rules, self._stepper, terms, empty, stopped)
        return row, stopped, metrics


class CompiledDriver:
    """Compiled code that is called for each minibatch.

        driver = CompiledDriver(optimizer)
        driver.run(rules, columns, passes, coefs)

    Code is made for given shapes, or taken from the cache on disk, and its first result is
    compared with the eager one. Numbers that networks and losses keep as plain Python attributes are
    constants of it: `DriverError` if one has changed since.
    """

    kind = "step"
    needs_valid = True

    def __init__(self, optimizer: torch.optim.Optimizer, announce: Announce | None = None) -> None:
        if compiler_name() is None:
            raise DriverError(
                "driver='step' compiles the update, but there is no C++ compiler here (looked for "
                "$CXX, g++ and clang++); install one, or use driver='eager'"
            )
        self._optimizer = optimizer
        self._announce = announce or _say_nothing
        self._program = (
            _FlatProgram(optimizer)
            if isinstance(optimizer, FlatAdam)
            else _GradientProgram(optimizer)
        )
        self._graphs: dict[Any, tuple[TensorFunction, CompiledGraph]] = {}
        self._python_state: tuple[Any, ...] | None = None

    def run(
        self,
        rules: UpdateRules,
        columns: Columns,
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """One call of compiled code per minibatch."""
        self._check_python_state(rules)
        return self.run_checked(rules, columns, passes, coefs)

    def run_checked(
        self,
        rules: UpdateRules,
        columns: Columns,
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """`run`, after `is_ready_for` returned True."""
        log = UpdateLog()
        given, shared, stopped = self._begin(columns, coefs)
        layout = _layout(given)
        for index in (index for minibatches in passes for index in minibatches):
            inputs = self._program.inputs(index, stopped, shared)
            function, graph = self._graph_for((layout, index.shape), rules, list(given), inputs)
            outputs = graph(inputs)
            row, stopped, metrics = self._program.finish(rules, function, outputs, stopped)
            log.add(row, _named(function, metrics))
            if rules.is_over(stopped):
                break
        return log

    def prepare(
        self,
        rules: UpdateRules,
        columns: Columns,
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """Compile for rollouts laid out like this one."""
        self._check_python_state(rules)
        given, shared, stopped = self._begin(columns, coefs)
        for index in minibatches:
            inputs = self._program.inputs(index, stopped, shared)
            self._graph_for((_layout(given), index.shape), rules, list(given), inputs)

    def is_ready_for(
        self, rules: UpdateRules, columns: Columns, minibatches: Sequence[Tensor]
    ) -> bool:
        """Whether there is code for such minibatches, and `run` would not refuse."""
        layout = _layout(columns)
        known = all((layout, index.shape) in self._graphs for index in minibatches)
        return known and python_state(rules, self._optimizer) == self._python_state

    def _begin(
        self, columns: Columns, coefs: UpdateCoefs
    ) -> tuple[dict[str, Tensor], list[Tensor], Tensor]:
        """Columns as compiled code takes them, all inputs that stay the same, and nothing stopped yet."""
        given = {name: column.contiguous() for name, column in columns.items()}
        device = coefs.clip.device
        self._program.begin(device)
        stopped = torch.zeros((), dtype=torch.bool, device=device)
        return given, [*coef_tensors(coefs), *given.values()], stopped

    def _check_python_state(self, rules: UpdateRules) -> None:
        state = python_state(rules, self._optimizer)
        if self._python_state is None or not self._graphs:
            self._python_state = state
        elif state != self._python_state:
            changed = [part for part in state if part not in self._python_state]
            raise DriverError(
                "driver='step' has compiled the update, and then plain Python values of the "
                f"policy or a loss changed: {changed[:3]}; compiled code takes them as constants. Make "
                "them tensors (register_buffer), or use driver='eager'"
            )

    def _graph_for(
        self, key: Any, rules: UpdateRules, names: Sequence[str], inputs: Sequence[Tensor]
    ) -> tuple[TensorFunction, CompiledGraph]:
        """The code for inputs of this layout, compiled when it is first asked for."""
        if key not in self._graphs:
            self._graphs[key] = self._make(rules, names, inputs)
        return self._graphs[key]

    def _make(
        self, rules: UpdateRules, names: Sequence[str], inputs: Sequence[Tensor]
    ) -> tuple[TensorFunction, CompiledGraph]:
        function = self._program.function(rules, names)
        try:
            _require_full_precision(rules)
            _require_no_gradient_hooks(self._optimizer)
            with state_put_back(rules) as buffers:
                with torch.enable_grad():
                    traced = trace(function.call, inputs)
                require_unchanged(buffers)
                if python_state(rules, self._optimizer) != self._python_state:
                    raise DriverError(
                        "the policy or a loss changes its plain Python values when it is called, which "
                        "compiled code would not"
                    )
                compiled = compile_graph(traced, inputs, self._announce)
                check_compiled(function, compiled, inputs)
        except (DriverError, RuntimeError) as error:
            raise DriverError(
                f"driver='step' was asked for, but the update cannot be compiled: {error}; "
                "use driver='eager'"
            ) from error
        return function, compiled


def python_state(rules: UpdateRules, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """Everything but tensors that decides what an update computes: constants of its compiled form.

    Plain values of the networks and losses, the settings, and those of the optimizer but its rate.
    """
    parts: list[Any] = [*plain_values(rules.policy, *(loss.fn for loss in rules.custom))]
    parts += [("loss", loss.label) for loss in rules.custom]
    parts += vars(rules.config).items()
    for group in optimizer.param_groups:
        parts += [(k, v) for k, v in group.items() if k not in ("lr", "params")]
    return tuple(parts)


def _require_full_precision(rules: UpdateRules) -> None:
    """Compilers skip roundings between operations, which in bfloat16 exceed any tolerance."""
    if rules.policy.precision != torch.float32:
        raise DriverError(
            f"its networks compute in {rules.policy.precision}, whose roundings compiled code cannot repeat"
        )


def _require_no_gradient_hooks(optimizer: torch.optim.Optimizer) -> None:
    everything = (p for group in optimizer.param_groups for p in group["params"])
    if any(map(has_gradient_hooks, everything)):
        raise DriverError(
            "a parameter has a hook on its gradient, which compiled code does not call"
        )


def _named(function: TensorFunction, metrics: Tensor) -> list[Metrics]:
    """Rows ``[pieces, K]`` as mappings; empty if no loss reports any."""
    names = function.metric_names
    return [dict(zip(names, row.unbind(), strict=True)) for row in metrics] if names else []


def _layout(columns: Columns) -> tuple[Any, ...]:
    return tuple((name, column.shape, column.dtype) for name, column in columns.items())


def _say_nothing(_: str) -> None: ...
