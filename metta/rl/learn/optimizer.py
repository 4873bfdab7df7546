"""Optimizers that step under a predicate, and the schedules that steer them."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from metta.errors import ConfigError, StateError
from metta.train.train_config import OptimizerConfig

__all__ = [
    "AdamState",
    "FlatAdam",
    "GradientStepper",
    "Stepper",
    "TorchStepper",
    "adam_step",
    "adapted_rate",
    "as_stepper",
    "make_optimizer",
    "scheduled",
]


_ADAPT_FACTOR = 1.5
_LEAST_RATE = 1e-6


def scheduled(kind: str, start: float, end_share: float, progress: float) -> float:
    """A coefficient at `progress` in 0..1 of the run: `start` at 0, ``start * end_share`` at 1."""
    progress = min(max(progress, 0.0), 1.0)
    end = start * end_share
    if kind == "linear":
        return start + (end - start) * progress
    if kind == "cosine":
        return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return start


def adapted_rate(rate: float, kl: float, desired_kl: float, start: float) -> float:
    """A learning rate 1.5 times lower after twice the desired KL, higher after less than half of it.

    It rises at most two times above where it started: a policy that has settled hardly changes at any rate,
    until one is large enough to destroy it.
    """
    if kl > 2.0 * desired_kl:
        return max(min(_LEAST_RATE, rate), rate / _ADAPT_FACTOR)
    if kl < 0.5 * desired_kl:
        return min(max(start * _ADAPT_FACTOR**2, rate), rate * _ADAPT_FACTOR)
    return rate


class Stepper(Protocol):
    """What the update needs from an optimizer."""

    def zero_grad(self) -> None:
        """Forget gradients."""
        ...

    def backward(self, total: Tensor) -> None:
        """Add the gradients of a loss, 0-dim, to the existing ones."""
        ...

    def grad_norm(self) -> Tensor:
        """Global 2-norm of the gradients, 0-dim."""
        ...

    def apply(self, scale: Tensor, ok: Tensor) -> None:
        """Step with gradients times `scale` where `ok` holds; otherwise change nothing."""
        ...


class GradientStepper(Stepper, Protocol):
    """A stepper whose gradients can be read and replaced."""

    def gradient(self) -> Tensor:
        """All gradients as one vector ``[P]``; it may share memory with them."""
        ...

    def set_gradient(self, vector: Tensor) -> None:
        """Gradients from one vector ``[P]`` as `gradient` gave it."""
        ...


class AdamState(NamedTuple):
    """What one step of Adam reads and writes: vectors ``[P]`` over all parameters, and a count."""

    flat: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step_count: Tensor


def adam_step(
    state: AdamState, group: Mapping[str, Any], rate: float | Tensor, scale: Tensor, ok: Tensor
) -> None:
    """Adam (Kingma and Ba 2015) or AdamW in place, where `ok` holds; the gradient is only read.

    `group` has torch's names: betas, eps, weight_decay, decoupled_weight_decay.
    """
    flat, gradient = state.flat, torch.where(ok, state.gradient * scale, 0.0)
    beta1, beta2 = group["betas"]
    allowed = ok.to(flat.dtype)
    if group["weight_decay"]:
        if group["decoupled_weight_decay"]:
            flat.mul_(1.0 - rate * group["weight_decay"] * allowed)
        else:
            gradient = gradient + group["weight_decay"] * flat
    state.step_count.add_(ok)
    state.exp_avg.lerp_(gradient, (1.0 - beta1) * allowed)
    share = (1.0 - beta2) * allowed
    state.exp_avg_sq.mul_(1.0 - share).add_(gradient.square_().mul_(share))
    steps = state.step_count.to(torch.float64).clamp(min=1.0)
    size = (rate / (1.0 - beta1**steps)).to(flat.dtype)
    correction = (1.0 - beta2**steps).sqrt().to(flat.dtype)
    denominator = state.exp_avg_sq.sqrt().div_(correction).add_(group["eps"])
    change = state.exp_avg.div(denominator).mul_(size)
    flat.sub_(change.masked_fill_(~ok, 0.0))


class FlatAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) or AdamW on one flat vector that all parameters are views of.

    Its state is laid out as `torch.optim.Adam`'s. The step is predicated: with ``ok`` False every
    moment, count and parameter keeps its bits, without a branch that a device would have to wait for.
    Parameters must not be moved to another device or dtype once it is built. Several optimizers may be
    built over the same parameters, in any order: each takes them back before it steps (`reattach`).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(list(params), {**defaults, "decoupled_weight_decay": decoupled})
        if len(self.param_groups) != 1:
            raise ConfigError("FlatAdam takes one parameter group; use torch.optim.Adam for more")
        self._params: list[nn.Parameter] = self.param_groups[0]["params"]
        kinds = {(p.dtype, p.device) for p in self._params}
        if len(kinds) != 1:
            raise ConfigError(
                f"FlatAdam needs one dtype and device, found {sorted(map(str, kinds))}"
            )
        with torch.no_grad():
            self.flat = torch.cat([p.reshape(-1) for p in self._params])
        self.flat_grad = torch.zeros_like(self.flat)
        self.exp_avg = torch.zeros_like(self.flat)
        self.exp_avg_sq = torch.zeros_like(self.flat)
        self.step_count = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self._values, self._gradients = self._views(self.flat), self._views(self.flat_grad)
        views = zip(
            self._params,
            self._values,
            self._gradients,
            self._views(self.exp_avg),
            self._views(self.exp_avg_sq),
            strict=True,
        )
        for parameter, value, gradient, first, second in views:
            parameter.data = value
            parameter.grad = gradient
            self.state[parameter] = {
                "step": self.step_count,
                "exp_avg": first,
                "exp_avg_sq": second,
            }

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([p.numel() for p in self._params])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._params, strict=True)]

    def zero_grad(self, set_to_none: bool = False) -> None:  # noqa: ARG002 (torch's signature; gradients are views and stay)
        """Set the flat gradient to zero, and the parameters' gradients to views of it again."""
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        self.flat_grad.zero_()

    @torch.no_grad()
    def _take_gradients(self) -> None:
        """Copy gradients that others made: `Module.zero_grad` drops the views, `backward` makes new."""
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
                parameter.grad = gradient

    @torch.no_grad()
    def reattach(self) -> None:
        """Make every parameter a view of the flat vector again, with the value that it has now.

        Another optimizer over the same parameters, as of a worker that shares the policy, takes them into
        its own. `StateError` where one was frozen, or moved to another device or dtype.
        """
        for index, (parameter, view) in enumerate(zip(self._params, self._values, strict=True)):
            if not parameter.requires_grad:
                raise StateError(
                    f"parameter {index} of the policy was frozen after its optimizer was built, whose "
                    "momentum would still move it; freeze first, then build the optimizer"
                )
            if parameter.data_ptr() == view.data_ptr():
                continue
            if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                raise StateError(
                    f"parameter {index} of the policy was {view.dtype} on {view.device} when its optimizer "
                    f"was built, and is {parameter.dtype} on {parameter.device} now; move the policy to "
                    "its device and dtype first, then build the optimizer"
                )
            view.copy_(parameter)
            parameter.data = view

    @property
    def tensors(self) -> AdamState:
        """The vectors that a step reads and writes, in place."""
        moments = (self.exp_avg, self.exp_avg_sq, self.step_count)
        return AdamState(self.flat, self.flat_grad, *moments)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the flat vector is made of, in its order."""
        return self._params

    def backward(self, total: Tensor) -> None:
        """Accumulate into the flat gradient."""
        total.backward()

    def grad_norm(self) -> Tensor:
        """2-norm of the flat gradient."""
        norm: Tensor = torch.linalg.vector_norm(self.flat_grad)
        return norm

    @torch.no_grad()
    def apply(self, scale: Tensor, ok: Tensor) -> None:
        """One predicated step with gradients times `scale`."""
        adam_step(self.tensors, self.param_groups[0], self.param_groups[0]["lr"], scale, ok)

    def gradient(self) -> Tensor:
        """The flat gradient itself."""
        return self.flat_grad

    def set_gradient(self, vector: Tensor) -> None:
        """Copy a vector into the flat gradient."""
        self.flat_grad.copy_(vector)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # reason: torch overloads by closure
        """An unconditional step, as of any torch optimizer."""
        loss = closure() if closure is not None else None
        self._take_gradients()
        self.reattach()
        device = self.flat.device
        self.apply(torch.ones((), device=device), torch.ones((), dtype=torch.bool, device=device))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As of `torch.optim.Adam`, which counts steps for each parameter apart."""
        packed = super().state_dict()
        parts = packed["state"].items()
        return packed | {"state": {k: {**v, "step": v["step"].clone()} for k, v in parts}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore moments and counts, also from a `torch.optim.Adam` over the same parameters."""
        saved = state_dict["state"]
        self._check_saved(saved)
        with torch.no_grad():
            self.step_count.zero_()
            for index, parameter in enumerate(self._params):
                own, other = self.state[parameter], saved.get(index)
                for key in ("exp_avg", "exp_avg_sq"):
                    own[key].copy_(other[key]) if other else own[key].zero_()
                self.step_count.copy_(torch.as_tensor(other["step"])) if other else None
        group = state_dict["param_groups"][0]
        known = self.param_groups[0].keys() - {"params"}
        self.param_groups[0].update({key: group[key] for key in known & group.keys()})

    def _check_saved(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        if len(saved) not in (0, len(self._params)):
            raise StateError(
                f"optimizer state has {len(saved)} parameters, the policy has {len(self._params)}"
            )
        for index, other in saved.items():
            found, expected = tuple(other["exp_avg"].shape), tuple(self._params[index].shape)
            if found != expected:
                raise StateError(
                    f"optimizer state of parameter {index} has shape {found}, the policy's has "
                    f"{expected}; it belongs to another network"
                )
        if len(steps := {float(other["step"]) for other in saved.values()}) > 1:
            raise StateError(
                f"the saved optimizer has stepped its parameters {sorted(steps)} times; FlatAdam "
                "steps all together, use torch.optim.Adam"
            )


class TorchStepper:
    """Any torch optimizer under the same predicate, decided on the host."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def zero_grad(self) -> None:
        """Set gradients to None."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, total: Tensor) -> None:
        """Accumulate into the parameters' gradients."""
        total.backward()

    def grad_norm(self) -> Tensor:
        """Global 2-norm over all groups."""
        return nn.utils.get_total_norm(self._gradients())

    def apply(self, scale: Tensor, ok: Tensor) -> None:
        """Scale gradients and step, or leave everything as it is."""
        if bool(ok):
            torch._foreach_mul_(self._gradients(), scale)
            self.optimizer.step()

    def gradient(self) -> Tensor:
        """The gradients of all parameters that have one, joined."""
        return torch.cat([gradient.reshape(-1) for gradient in self._gradients()])

    def set_gradient(self, vector: Tensor) -> None:
        """Copy the parts of a vector into them."""
        gradients = self._gradients()
        parts = vector.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _gradients(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]


def as_stepper(optimizer: torch.optim.Optimizer) -> GradientStepper:
    """The predicated form of an optimizer."""
    return optimizer if isinstance(optimizer, FlatAdam) else TorchStepper(optimizer)


def make_optimizer(
    params: Iterable[nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """The optimizer that a configuration names, over `params` where they now are."""
    trainable = [parameter for parameter in params if parameter.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(
            trainable,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    return FlatAdam(
        trainable,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        decoupled=config.name == "adamw",
    )
