import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from metta.agent.actions.action_spec import action_spec_of
from metta.agent.actions.gaussian import LOG_STD_RANGE
from metta.errors import ConfigError, SpaceError

UNIT = spaces.Box(-1.0, 1.0, (1,))


def params_of(mean: float, log_std: float) -> Tensor:
    return torch.tensor([[mean, log_std]], dtype=torch.float64)


def test_numbers_are_known_when_gaussian():
    spec = action_spec_of(UNIT)
    params = params_of(0.5, math.log(2.0))
    # log N(2.5; 0.5, 2) = -1/2 - log 2 - log(2 pi) / 2
    wanted = -0.5 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    action = torch.tensor([[2.5]], dtype=torch.float64)
    assert spec.log_prob(params, action, None).item() == pytest.approx(wanted, abs=1e-12)
    # H = log(2 sqrt(2 pi e))
    entropy = math.log(2.0) + 0.5 * math.log(2 * math.pi * math.e)
    assert spec.entropy(params, None).item() == pytest.approx(entropy, abs=1e-12)
    assert spec.sample(params, torch.tensor([[1.5]]).double(), None).item() == pytest.approx(3.5)


def test_sample_is_stored_as_drawn_when_outside_the_bounds():
    spec = action_spec_of(UNIT)
    stored = spec.sample(params_of(5.0, 0.0), torch.zeros(1, 1).double(), None)
    assert stored.item() == 5.0
    assert spec.to_env(stored.numpy()).item() == 1.0


def test_deviation_is_bounded_when_networks_run_away():
    spec = action_spec_of(UNIT)
    for wild, bound in ((-1000.0, LOG_STD_RANGE[0]), (1000.0, LOG_STD_RANGE[1])):
        params = params_of(0.0, wild).requires_grad_()
        sample = spec.sample(params, torch.ones(1, 1).double(), None)
        assert sample.item() == pytest.approx(math.exp(bound))
        log_prob, entropy = spec.log_prob_and_entropy(params, sample.detach(), None)
        (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), params)
        assert gradient.isfinite().all()


def test_squashed_action_is_on_the_line_between_the_bounds_when_sent():
    spec = action_spec_of(spaces.Box(np.float32(-1.0), np.float32(3.0), (1,)), squash=True)
    sent = spec.to_env(np.array([[0.0], [0.5], [20.0], [-20.0]], np.float32))
    # low + (tanh(x) + 1) / 2 * (high - low), tanh(0.5) = 0.46211716
    np.testing.assert_allclose(sent[:, 0], [1.0, 1.9242343, 3.0, -1.0], rtol=1e-6)


def test_squashed_log_prob_is_finite_when_far_in_the_tails():
    spec = action_spec_of(UNIT, squash=True)
    params = torch.tensor([[0.0, 0.0]], requires_grad=True)
    action = torch.tensor([[40.0]])
    log_prob = spec.log_prob(params, action, None)
    # log N(40; 0, 1) - 2 (log 2 - 40), as softplus(-80) vanishes
    wanted = -800 - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 40)
    assert log_prob.item() == pytest.approx(wanted, rel=1e-6)
    (gradient,) = torch.autograd.grad(log_prob.sum(), params)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("log_std", "tolerance"),
    # measured errors of 33 points: the integrand bends on the scale of 1, the points lie 0.3 std apart
    [(-2.0, 1e-6), (0.0, 5e-6), (0.5, 5e-6), (1.0, 1.5e-5), (1.5, 6e-4), (2.0, 8e-3)],
)
@pytest.mark.parametrize("mean", [0.0, 0.4, -2.5])
def test_squashed_entropy_equals_an_integral_when_deviations_grow(mean, log_std, tolerance):
    spec = action_spec_of(UNIT, squash=True)
    points = np.linspace(-12, 12, 100_001)
    shares = np.exp(-0.5 * points**2)
    stored = mean + math.exp(log_std) * points
    # log(1 - tanh(x)^2) = -2 log cosh(x)
    slope = -2 * (np.abs(stored) + np.log1p(np.exp(-2 * np.abs(stored))) - math.log(2))
    wanted = log_std + 0.5 * math.log(2 * math.pi * math.e) + np.average(slope, weights=shares)
    found = spec.entropy(params_of(mean, log_std), None).item()
    assert found == pytest.approx(wanted, abs=tolerance)


def test_squashed_entropy_falls_when_the_gaussian_saturates():
    spec = action_spec_of(UNIT, squash=True)
    wide, centred = spec.entropy(params_of(0.0, 2.0), None), spec.entropy(params_of(0.0, 0.0), None)
    assert wide.item() < centred.item() < math.log(2.0)  # log 2: uniform on -1..1


def test_huge_bounds_do_not_overflow_when_squashed():
    limit = np.finfo(np.float32).max
    spec = action_spec_of(spaces.Box(-limit, limit, (1,), np.float32), squash=True)
    np.testing.assert_array_equal(
        spec.to_env(np.array([[0.0], [50.0]], np.float32)), [[0], [limit]]
    )
    assert spec.entropy(params_of(0.0, 0.0), None).isfinite().all()


def test_bounds_of_a_float64_space_are_exact_when_float32_cannot_hold_them():
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    for squash in (False, True):
        sent = action_spec_of(space, squash=squash).to_env(np.array([[-99.0]], np.float32))
        assert sent.item() == -0.1
        assert space.contains(sent[0])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.float32([0, 1]), np.float32([1, 1]), (2,)),
    ],
    ids=["unbounded", "empty range"],
)
def test_squash_is_refused_when_bounds_do_not_allow_it(space):
    with pytest.raises(ConfigError, match="low < high"):
        action_spec_of(space, squash=True)


def test_integer_boxes_are_refused_when_used_as_actions():
    with pytest.raises(SpaceError, match="MultiDiscrete for integers"):
        action_spec_of(spaces.Box(0, 5, (2,), np.int32))


def test_gradient_reaches_mean_and_deviation_when_learning():
    spec = action_spec_of(UNIT)
    params = params_of(0.5, 0.0).requires_grad_()
    action = torch.tensor([[2.5]], dtype=torch.float64)
    spec.log_prob(params, action, None).sum().backward()
    # d/dmean = (a - mean) / var, d/dlog_std = (a - mean)^2 / var - 1
    torch.testing.assert_close(params.grad, torch.tensor([[2.0, 3.0]]).double(), rtol=0, atol=1e-12)


def test_deviation_finds_its_way_back_when_it_has_left_the_bounds() -> None:
    spec = action_spec_of(spaces.Box(-1.0, 1.0, (1,), np.float32))
    params = torch.tensor([0.0, 3.0], requires_grad=True)
    spec.log_prob(params, torch.tensor([0.1]), None).backward()
    assert params.grad is not None
    # a small sample asks for a smaller deviation
    assert float(params.grad[1]) < 0.0
