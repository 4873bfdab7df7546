"""Every action specification, through one suite, against `torch.distributions`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as td

from metta.agent.actions.action_spec import ActionSpec, action_spec_of, draw_noise
from metta.agent.actions.gaussian import SquashedBoxSpec
from metta.errors import NonFiniteError

Distribution = Callable[[Tensor], td.Distribution]


class Case(NamedTuple):
    space: spaces.Space
    distribution: Distribution
    squash: bool = False


def _categorical(params: Tensor) -> td.Distribution:
    return td.Categorical(logits=params)


def _parts(*sizes: int) -> Distribution:
    return lambda params: _Joint([td.Categorical(logits=p) for p in params.split(sizes, -1)])


def _normal(params: Tensor) -> td.Distribution:
    mean, log_std = params.chunk(2, -1)
    return td.Independent(td.Normal(mean, log_std.exp()), 1)


def _squashed(space: spaces.Box) -> "Case":
    low, high = (torch.from_numpy(bound.ravel()).double() for bound in (space.low, space.high))
    affine = td.AffineTransform((high + low) / 2, (high - low) / 2)

    def make(params: Tensor) -> td.Distribution:
        mean, log_std = params.chunk(2, -1)
        base = td.Normal(mean, log_std.exp())
        return td.Independent(td.TransformedDistribution(base, [td.TanhTransform(), affine]), 1)

    return Case(space, make, squash=True)


class _Joint(td.Distribution):
    """Independent categorical parts of different sizes, which torch has no class for."""

    def __init__(self, parts: list[td.Categorical]) -> None:
        super().__init__(validate_args=False)
        self.parts = parts

    def log_prob(self, value: Tensor) -> Tensor:
        return sum(p.log_prob(value[..., i]) for i, p in enumerate(self.parts))

    def entropy(self) -> Tensor:
        return sum(p.entropy() for p in self.parts)


def _box(low: object, high: object, shape: tuple[int, ...], dtype: type = np.float32) -> spaces.Box:
    bounds = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))
    return spaces.Box(*bounds, shape, dtype)


CASES = {
    "discrete": Case(spaces.Discrete(4), _categorical),
    "discrete_with_start": Case(spaces.Discrete(3, start=-5), _categorical),
    "discrete_int32": Case(spaces.Discrete(3, dtype=np.int32), _categorical),
    "multi_discrete": Case(spaces.MultiDiscrete([3, 2, 4]), _parts(3, 2, 4)),
    "multi_discrete_of_one_part": Case(spaces.MultiDiscrete([5]), _parts(5)),
    "multi_discrete_2d": Case(spaces.MultiDiscrete([[2, 3], [4, 2]]), _parts(2, 3, 4, 2)),
    "multi_discrete_with_start": Case(spaces.MultiDiscrete([3, 2], start=[7, -1]), _parts(3, 2)),
    "multi_binary": Case(spaces.MultiBinary(3), _parts(2, 2, 2)),
    "multi_binary_2d": Case(spaces.MultiBinary([2, 2]), _parts(2, 2, 2, 2)),
    "box": Case(_box(-0.1, [0.3, 2.0], (2,)), _normal),
    "box_unbounded": Case(_box(-np.inf, np.inf, (3,)), _normal),
    "box_2d": Case(_box(-1.0, 1.0, (2, 2)), _normal),
    "box_scalar": Case(_box(-1.0, 1.0, ()), _normal),
    "box_float64": Case(_box(-0.1, 0.1, (2,), np.float64), _normal),
    "squashed": _squashed(_box([-0.1, -2.0], [0.3, 1.0], (2,))),
    "squashed_2d": _squashed(_box(-1.0, 1.0, (2, 2))),
    "squashed_float64": _squashed(_box(-0.1, 0.7, (1,), np.float64)),
}
BOXES = [name for name in CASES if name.startswith(("box", "squashed"))]


@pytest.fixture(params=CASES)
def any_case(request: pytest.FixtureRequest) -> Case:
    """Every space, for what depends on its shape, type, start or bounds."""
    return CASES[request.param]


@pytest.fixture(
    params=["discrete", "multi_discrete", "multi_discrete_of_one_part", "box", "squashed"]
)
def case(request: pytest.FixtureRequest) -> Case:
    """Every formula, for what does not."""
    return CASES[request.param]


@pytest.fixture(params=["discrete", "multi_discrete"])
def maskable(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=["box", "squashed"])
def box(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def spec_of(case: Case) -> ActionSpec:
    return action_spec_of(case.space, squash=case.squash)


def generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(3))


def random_params(spec: ActionSpec, *lead: int) -> Tensor:
    values = torch.from_numpy(generator().standard_normal((*lead, spec.num_params)))
    return (values * 0.7).clamp(-1.0, 1.0)


def noise_for(spec: ActionSpec, *lead: int) -> Tensor:
    return torch.from_numpy(draw_noise(spec, generator(), *lead)).double()


def in_env_units(spec: ActionSpec, stored: Tensor) -> Tensor:
    if not isinstance(spec, SquashedBoxSpec):
        return stored
    low, high = (torch.from_numpy(bound.astype(np.float64)) for bound in (spec.low, spec.high))
    return low + (stored.tanh() + 1) / 2 * (high - low)


def test_log_prob_equals_torch_distributions_when_sampled(any_case):
    spec = spec_of(any_case)
    params = random_params(spec, 5, 6)
    stored = spec.sample(params, noise_for(spec, 5, 6), None)
    wanted = any_case.distribution(params).log_prob(in_env_units(spec, stored))
    torch.testing.assert_close(spec.log_prob(params, stored, None), wanted, rtol=0, atol=1e-10)


def test_entropy_equals_torch_distributions_or_an_integral_when_squashed(case):
    spec = spec_of(case)
    params = random_params(spec, 5, 6)
    if case.squash:
        dimensions = range(spec.action_shape[0])
        wanted = sum(_numeric_entropy(params.chunk(2, -1), i, spec) for i in dimensions)
        # the quadrature of 33 points is good to about 1e-5 per dimension at a deviation of 2.7
        tolerance = 1.2e-5 * len(dimensions)
    else:
        wanted, tolerance = case.distribution(params).entropy(), 1e-10
    torch.testing.assert_close(spec.entropy(params, None), wanted, rtol=0, atol=tolerance)


def _numeric_entropy(halves: tuple[Tensor, ...], dimension: int, spec: ActionSpec) -> Tensor:
    """Mean of -log p over a fine grid of the base noise."""
    mean, log_std = (half[..., dimension, None] for half in halves)
    points = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    shares = torch.softmax(-0.5 * points.square(), 0)
    stored = mean + log_std.exp() * points
    half_range = float(spec.high[dimension] - spec.low[dimension]) / 2
    log_normal = -0.5 * points.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_density = log_normal - torch.log1p(-stored.tanh().square()) - math.log(half_range)
    return -(shares * torch.nan_to_num(log_density, posinf=0.0)).sum(-1)


def test_both_at_once_equal_the_two_apart_when_masked_or_not(case):
    spec = spec_of(case)
    params = random_params(spec, 4, 3)
    action = spec.sample(params, noise_for(spec, 4, 3), None)
    masks = [None]
    if spec.mask_size:
        masks.append(torch.from_numpy(generator().random((4, 3, spec.mask_size)) < 0.6))
    for mask in masks:
        log_prob, entropy = spec.log_prob_and_entropy(params, action, mask)
        assert torch.equal(log_prob, spec.log_prob(params, action, mask))
        assert torch.equal(entropy, spec.entropy(params, mask))


def test_sample_is_a_function_of_its_noise_when_drawn_twice(case):
    spec = spec_of(case)
    params, noise = random_params(spec, 200, 1), noise_for(spec, 200, 1)
    before = torch.random.get_rng_state()
    first = spec.sample(params, noise, None)
    assert torch.equal(first, spec.sample(params, noise, None))
    assert torch.equal(before, torch.random.get_rng_state())
    other = spec.sample(params, noise.flip(0), None)
    assert not torch.equal(first, other)


def test_sample_has_the_stored_shape_and_dtype_when_batched(any_case):
    spec = spec_of(any_case)
    action = spec.sample(random_params(spec, 4, 3).float(), noise_for(spec, 4, 3).float(), None)
    assert action.shape == (4, 3, *spec.action_shape)
    assert action.dtype == spec.action_dtype


def test_float64_survives_when_the_policy_is_float64(box):
    spec = spec_of(box)
    params = random_params(spec, 2, 2)
    action = spec.sample(params, noise_for(spec, 2, 2).float(), None)
    assert action.dtype == torch.float64
    assert spec.log_prob(params, action, None).dtype == torch.float64


def test_frequencies_match_probabilities_when_sampled_often(maskable):
    spec = spec_of(maskable)
    draws = 20_000
    params = random_params(spec, 1, 1)
    actions = spec.sample(params.expand(draws, 1, -1), noise_for(spec, draws, 1), None)
    sizes = getattr(spec, "sizes", (spec.num_params,))
    columns = actions.reshape(draws, len(sizes))
    for part, logits in enumerate(params.reshape(-1).split(sizes)):
        expected = draws * logits.softmax(0)
        counts = torch.bincount(columns[:, part], minlength=len(logits))
        chi_square = ((counts - expected).square() / expected).sum()
        # at most 4 degrees of freedom: exceeded with probability 5e-4, and the seed is fixed
        assert chi_square < 20.0


def test_samples_have_mean_and_deviation_when_gaussian(box):
    spec = spec_of(box)
    draws = 20_000
    params = random_params(spec, 1, 1)
    actions = spec.sample(params.expand(draws, 1, -1), noise_for(spec, draws, 1), None)[:, 0]
    mean, log_std = params[0, 0].chunk(2)
    standard = (actions - mean) / log_std.exp()
    # 4.5 standard errors of a mean and of a variance over 20 000 draws
    assert standard.mean(0).abs().max() < 4.5 / math.sqrt(draws)
    assert (standard.var(0) - 1).abs().max() < 4.5 * math.sqrt(2 / draws)


def test_actions_are_members_of_the_space_when_sent_to_it(any_case):
    spec = spec_of(any_case)
    params = 5 * random_params(spec, 64, 1).float()  # wide, so that bounds are met
    stored = spec.sample(params, noise_for(spec, 64, 1).float(), None)[:, 0].numpy()
    sent = spec.to_env(stored)
    assert sent.dtype == any_case.space.dtype
    assert sent.shape == (64, *any_case.space.shape)
    assert all(any_case.space.contains(np.asarray(action)) for action in sent)


@pytest.mark.parametrize("name", BOXES)
def test_bounds_are_kept_exactly_when_actions_lie_far_outside(name):
    box = CASES[name]
    spec = spec_of(box)
    if not box.space.is_bounded():
        return
    for dtype in (np.float32, np.float64):
        far = np.full((2, *spec.action_shape), 1e4, dtype)
        far[1] *= -1
        top, bottom = spec.to_env(far)
        np.testing.assert_array_equal(top, box.space.high)
        np.testing.assert_array_equal(bottom, box.space.low)


def test_stored_actions_stay_when_the_environment_edits_its_own(any_case):
    spec = spec_of(any_case)
    stored = np.zeros((3, *spec.action_shape), np.zeros(0, np.float32).dtype)
    if not spec.action_dtype.is_floating_point:
        stored = stored.astype(np.int64)
    sent = spec.to_env(stored)
    sent += 1
    assert not stored.any()


def test_single_row_is_batched_when_sent(case):
    spec = spec_of(case)
    params = random_params(spec, 1, 1).float()
    stored = spec.sample(params, noise_for(spec, 1, 1).float(), None)[0].numpy()
    (action,) = spec.to_env(stored)
    assert case.space.contains(np.asarray(action))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_actions_are_refused_when_sent(box, bad):
    spec = spec_of(box)
    stored = np.zeros((3, *spec.action_shape), np.float32)
    stored[1, -1] = bad
    with pytest.raises(NonFiniteError, match="row 1"):
        spec.to_env(stored)


def test_mode_has_the_highest_probability_when_compared_with_samples(case):
    spec = spec_of(case)
    params = random_params(spec, 1, 1).expand(500, 1, -1)
    mode = spec.mode(params, None)
    assert mode.shape == (500, 1, *spec.action_shape)
    if case.squash:  # the median of what the environment sees
        assert torch.equal(mode, params.chunk(2, -1)[0])
        return
    others = spec.sample(params, noise_for(spec, 500, 1), None)
    assert (spec.log_prob(params, mode, None) >= spec.log_prob(params, others, None)).all()


# --- masks -----------------------------------------------------------------------------------------------


def half_masks(spec: ActionSpec, *lead: int) -> Tensor:
    """Random masks with a legal action in every part, and rows with only one."""
    mask = generator().random((*lead, spec.mask_size)) < 0.5
    sizes = getattr(spec, "sizes", (spec.mask_size,))
    first = 0
    for size in sizes:
        mask[..., first + size - 1] |= ~mask[..., first : first + size].any(-1)
        first += size
    return torch.from_numpy(mask)


def legal_at(spec: ActionSpec, mask: Tensor, action: Tensor) -> Tensor:
    sizes = getattr(spec, "sizes", (spec.mask_size,))
    columns = action.reshape(*mask.shape[:-1], len(sizes))
    parts = [m.gather(-1, columns[..., i, None]) for i, m in enumerate(mask.split(sizes, -1))]
    return torch.cat(parts, -1)


def test_masked_actions_never_come_when_sampled_often(maskable):
    spec = spec_of(maskable)
    # logits up to 50 apart, in float32: a masked favourite still never wins
    params = 20 * random_params(spec, 4000, 1).float()
    mask = half_masks(spec, 4000, 1)
    for action in (
        spec.sample(params, noise_for(spec, 4000, 1).float(), mask),
        spec.mode(params, mask),
    ):
        assert legal_at(spec, mask, action).all()


def test_probabilities_equal_a_renormalised_softmax_when_masked(maskable):
    spec = spec_of(maskable)
    params, mask = random_params(spec, 6, 2), half_masks(spec, 6, 2)
    action = spec.sample(params, noise_for(spec, 6, 2), mask)
    wanted = maskable.distribution(params.masked_fill(~mask, -1e30))
    torch.testing.assert_close(
        spec.log_prob(params, action, mask), wanted.log_prob(action), rtol=0, atol=1e-10
    )
    torch.testing.assert_close(spec.entropy(params, mask), wanted.entropy(), rtol=0, atol=1e-10)


def test_masked_actions_have_no_mass_when_scored(maskable):
    spec = spec_of(maskable)
    params = random_params(spec, 1, 1)
    mask = torch.ones(1, 1, spec.mask_size, dtype=torch.bool)
    mask[..., 0] = False
    action = torch.zeros((1, 1, *spec.action_shape), dtype=torch.int64)
    assert spec.log_prob(params, action, mask).exp().item() == 0.0


def test_masked_logits_get_no_gradient_when_learning(maskable):
    spec = spec_of(maskable)
    params = random_params(spec, 6, 2).requires_grad_()
    mask = half_masks(spec, 6, 2)
    mask[0, 0, 0] = False
    mask[0, 0, 1] = True
    action = spec.sample(params, noise_for(spec, 6, 2), mask)
    log_prob, entropy = spec.log_prob_and_entropy(params, action, mask)
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), params)
    assert (gradient[~mask] == 0).all()
    assert gradient.isfinite().all()
    assert (gradient[mask] != 0).any()


def test_entropy_is_zero_when_one_action_is_legal(maskable):
    spec = spec_of(maskable)
    params = random_params(spec, 1, 1).float().requires_grad_()
    mask = torch.zeros(1, 1, spec.mask_size, dtype=torch.bool)
    first = 0
    for size in getattr(spec, "sizes", (spec.mask_size,)):
        mask[..., first] = True
        first += size
    action = spec.sample(params.detach(), noise_for(spec, 1, 1).float(), mask)
    assert not action.any()
    log_prob, entropy = spec.log_prob_and_entropy(params, action, mask)
    assert entropy.item() == 0.0
    assert log_prob.item() == 0.0
    (gradient,) = torch.autograd.grad(entropy.sum() + log_prob.sum(), params)
    assert (gradient == 0).all()


def test_numbers_stay_finite_when_no_action_is_legal(maskable):
    spec = spec_of(maskable)
    params = random_params(spec, 1, 1).float().requires_grad_()
    mask = torch.zeros(1, 1, spec.mask_size, dtype=torch.bool)
    action = spec.sample(params.detach(), noise_for(spec, 1, 1).float(), mask)
    log_prob, entropy = spec.log_prob_and_entropy(params, action, mask)
    assert log_prob.isfinite().all()
    assert entropy.isfinite().all()
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), params)
    assert (gradient == 0).all()
    assert maskable.space.contains(spec.to_env(action[0].numpy())[0])


def test_masks_of_integers_count_as_booleans_when_given(maskable):
    spec = spec_of(maskable)
    params, noise = random_params(spec, 8, 1), noise_for(spec, 8, 1)
    mask = half_masks(spec, 8, 1)
    assert torch.equal(
        spec.sample(params, noise, mask), spec.sample(params, noise, mask.to(torch.int8))
    )


def test_masks_have_no_entries_when_actions_are_continuous(box):
    assert spec_of(box).mask_size == 0


# --- noise -----------------------------------------------------------------------------------------------


def test_noise_is_finite_float32_of_the_rollout_shape_when_drawn(case):
    spec = spec_of(case)
    noise = draw_noise(spec, generator(), 7, 5)
    assert noise.shape == (7, 5, spec.noise_dim)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    np.testing.assert_array_equal(noise, draw_noise(spec, generator(), 7, 5))


def test_noise_has_its_moments_when_drawn_often(case):
    spec = spec_of(case)
    noise = draw_noise(spec, generator(), 20_000, 1).astype(np.float64)
    # a Gumbel variable has mean gamma and variance pi^2 / 6
    gumbel = spec.noise_kind == "gumbel"
    mean, variance = (np.euler_gamma, math.pi**2 / 6) if gumbel else (0.0, 1.0)
    # 4.5 standard errors; the fourth moment of a Gumbel variable is 5.4 squared variances
    kurtosis = 5.4 if gumbel else 3.0
    assert abs(noise.mean() - mean) < 4.5 * math.sqrt(variance / noise.size)
    assert abs(noise.var() - variance) < 4.5 * variance * math.sqrt((kurtosis - 1) / noise.size)
