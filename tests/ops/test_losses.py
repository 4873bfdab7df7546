import math

import pytest
import torch

from metta.ops.losses import (
    clipped_surrogate,
    log_ratios,
    normalize_advantages,
    scale_advantages,
    value_loss,
    weighted_mean,
    zero_unweighted,
)

NAN = math.nan


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def surrogate_and_gradient(ratio, advantage, clip_coef=0.2):
    new_log_probs = double(math.log(ratio)).requires_grad_()
    loss = clipped_surrogate(new_log_probs, double(0.0), double(advantage), clip_coef)
    loss.sum().backward()
    assert new_log_probs.grad is not None
    return loss.item(), new_log_probs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # loss = max(-A * ratio, -A * clip(ratio, 0.8, 1.2)); d loss / d log_prob = -A * ratio or 0
        pytest.param(1.5, 2.0, -2.4, 0.0, id="good and already likelier: clipped"),
        pytest.param(1.5, -2.0, 3.0, 3.0, id="bad and likelier: not clipped"),
        pytest.param(0.5, 2.0, -1.0, -1.0, id="good and less likely: not clipped"),
        pytest.param(0.5, -2.0, 1.6, 0.0, id="bad and already less likely: clipped"),
        pytest.param(1.1, 2.0, -2.2, -2.2, id="good, inside"),
        pytest.param(0.9, -2.0, 1.8, 1.8, id="bad, inside"),
        pytest.param(1.0, 2.0, -2.0, -2.0, id="policy not yet changed"),
    ],
)
def test_surrogate_and_its_gradient_are_known_when_the_ratio_is(ratio, advantage, loss, gradient):
    found_loss, found_gradient = surrogate_and_gradient(ratio, advantage)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert found_gradient == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize("log_ratio", [-1e30, -500.0, -21.0, 21.0, 90.0, 1e30, math.inf, -math.inf])
@pytest.mark.parametrize("advantage", [-3.0, 0.0, 3.0])
def test_surrogate_and_gradient_are_finite_when_log_ratios_are_huge(log_ratio, advantage):
    new_log_probs = torch.tensor([log_ratio], requires_grad=True)
    loss = clipped_surrogate(new_log_probs, torch.zeros(1), torch.tensor([advantage]), 0.2)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert new_log_probs.grad is not None
    assert new_log_probs.grad.tolist() == [0.0]


def test_log_ratios_are_held_within_twenty_when_they_are_larger():
    found = log_ratios(double(30.0, 5.0, -30.0, 20.0), double(0.0, 2.0, 0.0, 0.0))
    assert found.tolist() == [20.0, 3.0, -20.0, 20.0]


def test_log_ratios_stay_nan_when_a_log_prob_is_nan():
    assert log_ratios(double(NAN, -math.inf), double(0.0, -math.inf)).isnan().all()


@pytest.mark.parametrize(
    ("new", "old", "target", "clip_coef", "loss"),
    [
        pytest.param(3.0, 1.0, 0.0, None, 4.5, id="no clip: 0.5 * 3^2"),
        pytest.param(3.0, 1.0, 0.0, 0.5, 4.5, id="moved away: the unclipped error is larger"),
        pytest.param(3.0, 1.0, 4.0, 0.5, 3.125, id="moved closer: 0.5 * (1.5 - 4)^2"),
        pytest.param(-3.0, 1.0, -4.0, 0.5, 10.125, id="moved closer, down: 0.5 * (0.5 + 4)^2"),
        pytest.param(1.25, 1.0, 4.0, 0.5, 3.78125, id="inside: 0.5 * 2.75^2"),
    ],
)
def test_value_loss_is_known_when_the_values_are(new, old, target, clip_coef, loss):
    assert value_loss(double(new), double(old), double(target), clip_coef).tolist() == [loss]


def test_value_gradient_is_zero_when_the_clipped_error_is_the_larger():
    new_values = double(3.0, 1.25, 3.0).requires_grad_()
    value_loss(new_values, double(1.0, 1.0, 1.0), double(4.0, 4.0, 0.0), 0.5).sum().backward()
    assert new_values.grad is not None
    assert new_values.grad.tolist() == [0.0, -2.75, 3.0]


def test_value_loss_is_that_of_divided_values_when_scaled():
    new, old, target = double(30.0, 12.5), double(10.0, 10.0), double(40.0, 40.0)
    expected = value_loss(new / 10, old / 10, target / 10, 0.5)
    assert torch.equal(value_loss(new, old, target, 0.5, scale=10.0), expected)
    assert expected.tolist() == [3.125, 3.78125]


def test_losses_are_equal_when_coefficients_are_tensors():
    new, old, advantages = double(0.5, -0.5, 0.1), double(0.0, 0.0, 0.0), double(1.0, -1.0, 2.0)
    clip, scale = torch.tensor(0.25), torch.tensor(2.0)  # exact in every dtype
    assert torch.equal(
        clipped_surrogate(new, old, advantages, clip), clipped_surrogate(new, old, advantages, 0.25)
    )
    assert torch.equal(
        value_loss(new, old, advantages, clip, scale), value_loss(new, old, advantages, 0.25, 2.0)
    )


def test_losses_keep_their_shape_when_samples_lie_in_two_axes():
    samples = torch.zeros(3, 2)
    assert clipped_surrogate(samples, samples, samples, 0.2).shape == (3, 2)
    assert value_loss(samples, samples, samples, 0.2).shape == (3, 2)
    assert normalize_advantages(samples, samples).shape == (3, 2)
    assert weighted_mean(samples, samples).shape == ()


def test_losses_never_look_at_numbers_when_they_run():
    samples = torch.zeros(4, device="meta")  # has no data: a branch on it would raise
    coef = torch.zeros((), device="meta")
    assert clipped_surrogate(samples, samples, samples, coef).shape == (4,)
    assert value_loss(samples, samples, samples, coef, coef).shape == (4,)
    assert normalize_advantages(samples, samples).shape == (4,)
    assert weighted_mean(samples, samples).shape == ()


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [
        pytest.param([1.0, 2.0, 6.0], [1.0, 1.0, 1.0], 3.0, id="plain"),
        pytest.param([1.0, 2.0, 6.0], [3.0, 0.0, 1.0], 2.25, id="counts: (3 + 6) / 4"),
        pytest.param([NAN, math.inf, 6.0], [0.0, 0.0, 1.0], 6.0, id="garbage without weight"),
        pytest.param([NAN, 5.0], [0.0, 0.0], 0.0, id="no weight at all"),
        pytest.param([4.0, 8.0], [0.25, 0.25], 3.0, id="sum below 1: divided by 1"),
        pytest.param([], [], 0.0, id="no rows"),
    ],
)
def test_weighted_mean_is_known_when_weights_are(values, weights, mean):
    assert weighted_mean(double(*values), double(*weights)).item() == mean


def test_weighted_mean_is_nan_when_a_row_with_weight_is_nan():
    assert weighted_mean(double(NAN, 1.0), double(1.0, 1.0)).isnan()


def test_weighted_mean_gives_no_gradient_when_a_row_has_no_weight():
    values = double(1.0, NAN, 3.0, math.inf).requires_grad_()
    weighted_mean(values, double(1.0, 0.0, 3.0, 0.0)).backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.25, 0.0, 0.75, 0.0]


def test_nan_does_not_reach_loss_or_gradient_when_its_row_has_no_weight():
    weights = double(1.0, 0.0, 1.0, 0.0)
    scores = double(0.1, 0.2, -0.1, 0.3).requires_grad_()

    def loss_of(stored):
        old_log_probs = zero_unweighted(stored, weights)
        advantages = normalize_advantages(stored, weights)
        policy = clipped_surrogate(scores, old_log_probs, advantages, 0.2)
        value = value_loss(scores, old_log_probs, zero_unweighted(stored, weights), 0.2)
        return weighted_mean(policy + value, weights)

    dirty, clean = (loss_of(double(0.0, x, 0.5, y)) for x, y in [(NAN, math.inf), (0.0, 0.0)])
    assert dirty.item() == clean.item()
    dirty.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[[1, 3]].tolist() == [0.0, 0.0]
    assert (scores.grad[[0, 2]] != 0.0).all()


def test_normalized_advantages_are_known_when_some_rows_have_no_weight():
    # rows 2, 4, 9: mean 5, variance (9 + 1 + 16) / 2 = 13
    found = normalize_advantages(double(2.0, NAN, 4.0, 9.0), double(1.0, 0.0, 1.0, 1.0), eps=0.5)
    scale = math.sqrt(13.0) + 0.5
    expected = double(-3.0 / scale, 0.0, -1.0 / scale, 4.0 / scale)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0.0)


def test_normalized_advantages_equal_those_of_repeated_rows_when_weights_are_counts():
    advantages, counts = double(1.0, -2.0, 5.0), double(2.0, 1.0, 3.0)
    repeated = advantages.repeat_interleave(counts.long())
    expected = normalize_advantages(repeated, torch.ones_like(repeated))
    found = normalize_advantages(advantages, counts).repeat_interleave(counts.long())
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0.0)


def test_normalized_advantages_match_float64_when_float32_has_a_large_mean():
    generator = torch.Generator().manual_seed(3)
    advantages = 256.0 + torch.randint(-64, 64, (1024,), generator=generator) / 16.0
    found = normalize_advantages(advantages, torch.ones(1024))
    exact = advantages.double()
    expected = (exact - exact.mean()) / exact.std()
    # the variance is 5: E[x^2] - E[x]^2 would be off by 256^2 * 6e-8, which is a thousandth of it
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("advantages", "weights", "expected"),
    [
        pytest.param([7.0], [1.0], [7.0], id="one row"),
        pytest.param([7.0, NAN, 5.0], [1.0, 0.0, 0.0], [7.0, 0.0, 0.0], id="one row with weight"),
        pytest.param([NAN, 5.0], [0.0, 0.0], [0.0, 0.0], id="no row with weight"),
        pytest.param([], [], [], id="no rows"),
        pytest.param([3.0, 3.0], [1.0, 1.0], [0.0, 0.0], id="two equal rows: only centred"),
    ],
)
def test_normalized_advantages_are_finite_when_there_is_no_spread(advantages, weights, expected):
    assert normalize_advantages(double(*advantages), double(*weights)).tolist() == expected


def test_normalizing_leaves_its_input_untouched_when_rows_are_dropped():
    advantages = double(1.0, 2.0, 3.0)
    normalize_advantages(advantages, double(1.0, 0.0, 1.0))
    assert advantages.tolist() == [1.0, 2.0, 3.0]


def test_normalized_advantages_are_zero_when_all_are_equal_but_for_rounding() -> None:
    # in float32 the mean of 1000 times 7.7 is not 7.7; dividing that rounding by itself gives 1
    normalized = normalize_advantages(torch.full((1000,), 7.7), torch.ones(1000))
    assert torch.equal(normalized, torch.zeros(1000))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_normalized_advantages_agree_when_weights_are_absent_or_all_one(count: int) -> None:
    advantages = torch.arange(count, dtype=torch.float64) ** 2 + 3.0
    weighted = normalize_advantages(advantages, torch.ones_like(advantages))
    torch.testing.assert_close(normalize_advantages(advantages, None), weighted, rtol=1e-14, atol=0)


def test_advantages_keep_their_sign_and_zero_when_they_are_only_scaled() -> None:
    found = scale_advantages(double(3.0, 0.0, -4.0, 5.0), None, eps=0.0)
    rms = (50 / 4) ** 0.5
    assert found.tolist() == pytest.approx([3 / rms, 0.0, -4 / rms, 5 / rms])
    weighted = scale_advantages(double(3.0, NAN, -4.0), double(1.0, 0.0, 1.0), eps=0.0)
    assert weighted.tolist() == pytest.approx([3 / 12.5**0.5, 0.0, -4 / 12.5**0.5])


def test_equal_and_zero_advantages_stay_finite_when_they_are_only_scaled() -> None:
    assert scale_advantages(double(2.0, 2.0), None).tolist() == pytest.approx([1.0, 1.0])
    assert scale_advantages(double(0.0, 0.0), None).tolist() == [0.0, 0.0]
