import math

import numpy as np
import pytest
import torch

from metta.ops.diagnostics import all_finite, approx_kl, clip_fraction, explained_variance

NAN = math.nan


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_kl_is_known_when_the_ratio_is():
    # ratio - 1 minus the log of the ratio, for ratios 2, 1 and 1/2
    found = approx_kl(double(math.log(2.0), 0.0, math.log(0.5)), double(0.0, 0.0, 0.0))
    expected = double(1.0 - math.log(2.0), 0.0, -0.5 + math.log(2.0))
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0.0)


def test_kl_averages_to_the_exact_divergence_when_every_action_is_weighed():
    old, new = double(0.5, 0.3, 0.2), double(0.2, 0.2, 0.6)
    exact = (old * (old.log() - new.log())).sum()
    found = (old * approx_kl(new.log(), old.log())).sum()
    torch.testing.assert_close(found, exact, rtol=1e-14, atol=0.0)


def test_kl_keeps_its_digits_when_float32_policies_are_close():
    log_ratio = torch.tensor([2.0**-10, -(2.0**-10), 2.0**-7])
    exact = torch.expm1(log_ratio.double()) - log_ratio.double()
    found = approx_kl(log_ratio, torch.zeros(3)).double()
    # exp - 1 - x in float32 would be off by 6e-8, a tenth of the smallest of these
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-9)
    assert (found > 0).all()


@pytest.mark.parametrize("log_ratio", [-1e30, -100.0, 100.0, math.inf])
def test_kl_is_finite_when_log_ratios_are_huge(log_ratio):
    assert approx_kl(torch.tensor([log_ratio]), torch.zeros(1)).isfinite().all()


@pytest.mark.parametrize("clip_coef", [0.2, torch.tensor(0.2)])
def test_clip_fraction_marks_samples_when_their_ratio_is_outside(clip_coef):
    new = double(1.3, 1.19, 1.0, 0.81, 0.7).log()
    found = clip_fraction(new, torch.zeros_like(new), clip_coef)
    assert found.dtype == new.dtype
    assert found.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [
        pytest.param([1.0, 2.0, 6.0], [1.0, 2.0, 6.0], 1.0, id="perfect"),
        pytest.param([11.0, 12.0, 16.0], [1.0, 2.0, 6.0], 1.0, id="perfect but for an offset"),
        pytest.param([5.0, 5.0, 5.0], [1.0, 2.0, 6.0], 0.0, id="a constant"),
        pytest.param([-1.0, -2.0, -6.0], [1.0, 2.0, 6.0], -3.0, id="opposite: 1 - 2^2"),
        pytest.param([0.5, 1.0, 3.0], [1.0, 2.0, 6.0], 0.75, id="half the way: 1 - 0.5^2"),
        pytest.param([1.0, 2.0, 6.0], [4.0, 4.0, 4.0], 0.0, id="returns without variance"),
        pytest.param([3.0], [4.0], 0.0, id="one row"),
        pytest.param([], [], 0.0, id="no rows"),
    ],
)
def test_explained_variance_is_known_when_values_are(values, returns, expected):
    found = explained_variance(double(*values), double(*returns), torch.ones(len(values)).double())
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, abs=1e-14)


def test_explained_variance_skips_rows_when_they_have_no_weight():
    values, returns = double(0.5, NAN, 1.0, 9.0, 3.0), double(1.0, 7.0, 2.0, math.inf, 6.0)
    weights = double(1.0, 0.0, 1.0, 0.0, 1.0)
    assert explained_variance(values, returns, weights).item() == pytest.approx(0.75, rel=1e-14)
    assert explained_variance(values, returns, torch.zeros_like(weights)).item() == 0.0


def test_explained_variance_counts_rows_when_weights_are_counts():
    values, returns, counts = double(1.0, 2.0, 4.0), double(2.0, 2.0, 5.0), double(3.0, 1.0, 2.0)
    repeated = [x.repeat_interleave(counts.long()).numpy() for x in (values, returns)]
    expected = 1.0 - np.var(repeated[1] - repeated[0]) / np.var(repeated[1])
    found = explained_variance(values, returns, counts)
    assert found.item() == pytest.approx(expected, rel=1e-13)


def test_explained_variance_is_nan_when_a_row_with_weight_is_nan():
    good, bad = double(1.0, 2.0, 6.0), double(1.0, NAN, 6.0)
    assert explained_variance(good, bad, torch.ones_like(good)).isnan()
    assert explained_variance(bad, good, torch.ones_like(good)).isnan()


def test_diagnostics_never_look_at_numbers_when_they_run():
    samples = torch.zeros(4, device="meta")  # has no data: a branch on it would raise
    for result in (approx_kl(samples, samples), clip_fraction(samples, samples, 0.2)):
        assert result.shape == (4,)
    assert explained_variance(samples, samples, samples).shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.1, 1234.567, -1e6])
def test_explained_variance_is_zero_when_returns_differ_only_by_rounding(dtype, constant):
    returns = torch.full((1000,), constant, dtype=dtype)
    values = torch.linspace(-1.0, 1.0, 1000, dtype=dtype)
    assert explained_variance(values, returns, torch.ones_like(returns)).item() == 0.0


def test_explained_variance_keeps_its_digits_when_the_mean_is_large():
    rng = np.random.default_rng(0)
    spread, noise = rng.normal(size=512), 0.1 * rng.normal(size=512)
    returns, values = 1e8 + spread, 1e8 + spread + noise
    expected = 1.0 - np.var(returns - values) / np.var(returns)
    found = explained_variance(*(torch.from_numpy(x) for x in (values, returns)), torch.ones(512))
    # E[x^2] - E[x]^2 has no digit left at this offset
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        pytest.param([0.0, -1.5], True, id="finite"),
        pytest.param([3e38, 3e38], True, id="finite, but not their sum"),
        pytest.param([1.0, NAN], False, id="nan"),
        pytest.param([math.inf, 1.0], False, id="infinite"),
        pytest.param([math.inf, -math.inf], False, id="infinities that cancel"),
        pytest.param([], True, id="nothing"),
    ],
)
def test_nan_and_infinity_are_seen_when_they_are_there(numbers, expected):
    assert all_finite(torch.tensor(numbers, dtype=torch.float32)) is expected
