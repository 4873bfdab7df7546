"""FlatAdam beside torch's own, predicated steps, and schedules."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.errors import ConfigError, StateError
from metta.rl.learn.optimizer import FlatAdam, adapted_rate, as_stepper, make_optimizer, scheduled
from metta.stateful import digest_of
from metta.train.train_config import OptimizerConfig

KINDS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "adam": ({}, torch.optim.Adam),
    "adam decay": ({"weight_decay": 0.1}, torch.optim.Adam),
    "adamw": ({"weight_decay": 0.1, "decoupled": True}, torch.optim.AdamW),
    "other betas": ({"betas": (0.5, 0.7), "eps": 1e-3}, torch.optim.Adam),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def pair(kind: str) -> tuple[nn.Module, FlatAdam, nn.Module, torch.optim.Optimizer]:
    """One network twice, one with FlatAdam and one with torch's optimizer."""
    options, theirs = KINDS[kind]
    one, other = network(), network()
    known = {key: value for key, value in options.items() if key != "decoupled"}
    return (
        one,
        FlatAdam(one.parameters(), lr=0.02, **options),
        other,
        theirs(other.parameters(), lr=0.02, **known),
    )


def set_gradients(modules: list[nn.Module], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameters in zip(*(module.parameters() for module in modules), strict=True):
        gradient = scale * torch.randn(
            parameters[0].shape, generator=generator, dtype=torch.float64
        )
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            else:
                parameter.grad.copy_(gradient)


def largest_gap(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def yes() -> Tensor:
    return torch.ones((), dtype=torch.bool)


# FlatAdam is Adam.


@pytest.mark.parametrize("kind", KINDS)
def test_flat_adam_equals_torch_when_fifty_random_steps_are_taken(kind: str) -> None:
    one, flat, other, theirs = pair(kind)
    for step in range(50):
        flat.zero_grad()
        theirs.zero_grad()
        set_gradients([one, other], seed=step, scale=10.0 ** (step % 5 - 2))
        if step == 25:
            flat.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = 0.003
        flat.step()
        theirs.step()
    assert largest_gap(one, other) < 1e-12
    assert largest_gap(one, network()) > 0.1


def test_scale_acts_on_gradients_when_a_step_is_applied() -> None:
    one, flat, other, theirs = pair("other betas")
    set_gradients([one], seed=0)
    set_gradients([other], seed=0, scale=0.25)
    flat.apply(torch.tensor(0.25, dtype=torch.float64), yes())
    theirs.step()
    assert largest_gap(one, other) < 1e-15


@pytest.mark.parametrize("kind", KINDS)
def test_state_loads_when_it_goes_from_torch_to_flat(kind: str) -> None:
    one, flat, other, theirs = pair(kind)
    for step in range(5):
        set_gradients([other], seed=step)
        theirs.step()
    one.load_state_dict(other.state_dict())
    flat.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for step in range(5):
        set_gradients([one, other], seed=9 + step)
        flat.step()
        theirs.step()
    assert largest_gap(one, other) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_state_loads_when_it_goes_from_flat_to_torch(kind: str) -> None:
    one, flat, other, theirs = pair(kind)
    for step in range(5):
        set_gradients([one], seed=step)
        flat.step()
    other.load_state_dict(one.state_dict())
    theirs.load_state_dict(copy.deepcopy(flat.state_dict()))
    for step in range(5):
        set_gradients([one, other], seed=9 + step)
        flat.step()
        theirs.step()
    assert {float(part["step"]) for part in theirs.state.values()} == {10.0}
    assert largest_gap(one, other) < 1e-12


def test_moments_and_count_return_to_zero_when_a_fresh_state_is_loaded() -> None:
    one, flat, other, theirs = pair("adam")
    set_gradients([one], seed=0)
    flat.step()
    flat.load_state_dict(theirs.state_dict())
    one.load_state_dict(other.state_dict())
    set_gradients([one, other], seed=1)
    flat.step()
    theirs.step()
    assert largest_gap(one, other) < 1e-15


def test_state_is_refused_when_it_belongs_to_another_network() -> None:
    _, flat, other, theirs = pair("adam")
    set_gradients([other], seed=0)
    theirs.step()
    state = copy.deepcopy(theirs.state_dict())
    before = digest_of(flat.state_dict())
    state["state"][1]["exp_avg"] = torch.zeros(1)  # would broadcast
    with pytest.raises(StateError, match=r"parameter 1 has shape \(1,\), the policy's has \(5,\)"):
        flat.load_state_dict(state)
    del state["state"][1]
    with pytest.raises(StateError, match="3 parameters, the policy has 4"):
        flat.load_state_dict(state)
    assert digest_of(flat.state_dict()) == before


def test_state_is_refused_when_parameters_were_stepped_unequally_often() -> None:
    _, flat, other, theirs = pair("adam")
    set_gradients([other], seed=0)
    theirs.step()
    other[0].weight.grad = None  # type: ignore[union-attr, index]
    theirs.step()
    with pytest.raises(StateError, match=r"\[1.0, 2.0\] times"):
        flat.load_state_dict(theirs.state_dict())


# Predicated steps.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_every_bit_is_kept_when_a_step_is_not_allowed(kind: str, bad: float) -> None:
    one, flat, other, theirs = pair(kind)
    set_gradients([one, other], seed=0)
    for stepper, module in ((as_stepper(flat), one), (as_stepper(theirs), other)):
        stepper.apply(torch.ones((), dtype=torch.float64), yes())
        with torch.no_grad():
            next(module.parameters()).fill_(-0.0)  # the sign of a zero is a bit too
        optimizer = flat if module is one else theirs
        before = digest_of([module.state_dict(), optimizer.state_dict()])
        next(module.parameters()).grad.fill_(bad)  # type: ignore[union-attr]
        norm = stepper.grad_norm()
        assert not norm.isfinite()
        stepper.apply(norm, ~yes())
        assert digest_of([module.state_dict(), optimizer.state_dict()]) == before


def test_norm_is_global_when_there_are_several_parameters() -> None:
    one, flat, other, theirs = pair("adam")
    set_gradients([one, other], seed=0)
    everything = torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None])
    for optimizer in (flat, theirs):
        torch.testing.assert_close(as_stepper(optimizer).grad_norm(), everything.norm())


# Gradients and parameters that somebody else replaced.


def test_gradients_are_taken_when_the_module_dropped_the_views() -> None:
    one, flat, other, theirs = pair("adam")
    inputs = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for module, optimizer in ((one, flat), (other, theirs)):
            module.zero_grad()  # sets gradients to None, so that backward makes new ones
            module(inputs).square().sum().backward()
            optimizer.step()
    assert largest_gap(one, other) < 1e-15


def test_zero_grad_restores_the_views_when_a_gradient_was_replaced() -> None:
    one, flat, _, _ = pair("adam")
    one.zero_grad()
    one(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    flat.zero_grad()
    one(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    everything = torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None])
    assert torch.equal(flat.flat_grad, everything)
    assert float(flat.grad_norm()) > 0


def test_reattach_names_a_parameter_that_was_moved_to_another_dtype() -> None:
    one, flat, _, _ = pair("adam")
    flat.reattach()
    one.float()
    with pytest.raises(StateError, match=r"parameter 0 .* was torch.float64 .* is torch.float32"):
        flat.reattach()


def test_two_optimizers_step_the_same_parameters_in_turn() -> None:
    one, first, other, theirs = pair("adam")
    second = FlatAdam(one.parameters(), lr=0.01)
    their_second = torch.optim.Adam(other.parameters(), lr=0.01)
    inputs = torch.ones(1, 3, dtype=torch.float64)
    for mine, plain in ((first, theirs), (second, their_second), (first, theirs)):
        for module, optimizer in ((one, mine), (other, plain)):
            optimizer.zero_grad()
            module(inputs).square().sum().backward()
            optimizer.step()
    assert largest_gap(one, other) < 1e-15


def test_several_groups_are_refused_when_flat_adam_is_built() -> None:
    first, second = (list(network().parameters()) for _ in range(2))
    groups: Any = [{"params": first}, {"params": second}]
    with pytest.raises(ConfigError, match="one parameter group"):
        FlatAdam(groups, lr=0.1)


def test_mixed_types_are_refused_when_flat_adam_is_built() -> None:
    with pytest.raises(ConfigError, match="one dtype and device"):
        FlatAdam([*network().parameters(), *network().float().parameters()], lr=0.1)


# Choice and schedules.


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_config_names_the_optimizer_when_one_is_made(name: Any) -> None:
    config = OptimizerConfig(name=name, learning_rate=0.01, weight_decay=0.1, momentum=0.5)
    module, other = network(), network()
    frozen = next(module.parameters()).requires_grad_(False)
    next(other.parameters()).requires_grad_(False)
    own = make_optimizer(module.parameters(), config)
    trainable = [p for p in other.parameters() if p.requires_grad]
    theirs: torch.optim.Optimizer = {
        "adam": lambda: torch.optim.Adam(trainable, lr=0.01, eps=config.eps, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(trainable, lr=0.01, eps=config.eps, weight_decay=0.1),
        "sgd": lambda: torch.optim.SGD(trainable, lr=0.01, momentum=0.5, weight_decay=0.1),
    }[name]()
    for step in range(3):
        set_gradients([module, other], seed=step)
        own.step()
        theirs.step()
    assert largest_gap(module, other) < 1e-15
    assert torch.equal(frozen, next(network().parameters()))


@pytest.mark.parametrize(
    ("kind", "halfway", "end"), [("constant", 4.0, 4.0), ("linear", 2.5, 1.0), ("cosine", 2.5, 1.0)]
)
def test_schedule_reaches_its_end_when_progress_is_one(
    kind: str, halfway: float, end: float
) -> None:
    assert scheduled(kind, 4.0, 0.25, 0.0) == 4.0
    assert scheduled(kind, 4.0, 0.25, 0.5) == pytest.approx(halfway)
    assert scheduled(kind, 4.0, 0.25, 1.0) == end
    assert scheduled(kind, 4.0, 0.25, 1.5) == end
    assert scheduled(kind, 4.0, 0.25, -1.0) == 4.0


def test_cosine_is_slow_at_both_ends_when_progress_grows() -> None:
    # half of 1 + cos(pi / 4)
    assert scheduled("cosine", 1.0, 0.0, 0.25) == pytest.approx(0.5 * (1 + math.sqrt(0.5)))


def test_rate_moves_both_ways_when_kl_is_far_from_the_desired() -> None:
    assert adapted_rate(3e-4, 0.03, 0.01, start=3e-4) == pytest.approx(2e-4)
    assert adapted_rate(3e-4, 0.001, 0.01, start=3e-4) == pytest.approx(4.5e-4)
    assert adapted_rate(3e-4, 0.01, 0.01, start=3e-4) == 3e-4
    assert adapted_rate(3e-4, float("nan"), 0.01, start=3e-4) == 3e-4


def test_rate_stays_in_its_range_when_it_adapts() -> None:
    settled = 1e-3
    for _ in range(20):
        settled = adapted_rate(settled, kl=0.0, desired_kl=0.01, start=1e-3)
    assert settled == pytest.approx(2.25e-3)
    assert adapted_rate(1.2e-6, 1.0, 0.01, start=1e-3) == 1e-6
    # a rate that somebody chose outside of the range never moves against the KL
    assert adapted_rate(0.05, 0.0, 0.01, start=1e-3) == 0.05
    assert adapted_rate(0.05, 1.0, 0.01, start=1e-3) < 0.05
    assert adapted_rate(1e-8, 1.0, 0.01, start=1e-8) <= 1e-8
