import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metta.ops.running_moments import Moments, batch_moments, merge, variance


def moments_of(rows: np.ndarray) -> Moments:
    return batch_moments(torch.from_numpy(rows), torch.ones(len(rows), dtype=torch.float64))


def exact_moments(samples: np.ndarray) -> tuple[float, float]:
    """Mean and population variance in rational arithmetic."""
    numbers = [Fraction(float(sample)) for sample in samples]
    mean = sum(numbers) / len(numbers)
    return float(mean), float(sum((x - mean) ** 2 for x in numbers) / len(numbers))


def test_moments_are_known_when_rows_are_weighted():
    # column 0: 1, 1, 5 -> mean 7/3, m2 2 * (4/3)^2 + (8/3)^2 = 32/3; column 1: 0, 0, 6 -> 2, 24
    x = torch.tensor([[1.0, 0.0], [math.nan, math.inf], [5.0, 6.0]])
    count, mean, m2 = batch_moments(x, torch.tensor([2.0, 0.0, 1.0]))
    assert count.item() == 3.0
    bounds = {"rtol": 1e-14, "atol": 0.0}
    torch.testing.assert_close(mean, torch.tensor([7 / 3, 2.0], dtype=torch.float64), **bounds)
    torch.testing.assert_close(m2, torch.tensor([32 / 3, 24.0], dtype=torch.float64), **bounds)
    assert {count.dtype, mean.dtype, m2.dtype} == {torch.float64}


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e8, 1e8])
def test_batch_moments_match_numpy_when_the_offset_is_large(offset):
    rows = offset + np.random.default_rng(7).normal(size=(1000, 3, 2))
    found = moments_of(rows)
    np.testing.assert_allclose(found.mean.numpy(), rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance(found).numpy(), rows.var(axis=0), rtol=1e-12)
    for index in np.ndindex(3, 2):
        mean, exact_variance = exact_moments(rows[(slice(None), *index)])
        assert found.mean[index].item() == pytest.approx(mean, rel=1e-15)
        assert variance(found)[index].item() == pytest.approx(exact_variance, rel=1e-12)


@pytest.mark.parametrize(
    ("offset", "tolerance"),
    [
        (0.0, 1e-12),
        (100.0, 1e-12),
        # each batch's mean is rounded to 1e8 * 1e-16 = 1e-8 standard deviations before the merge
        (1e8, 1e-8),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 499), (250, 250), (3, 100, 0, 17), (5,) * 40])
def test_merged_moments_equal_the_whole_when_batches_differ_in_size(offset, tolerance, sizes):
    rows = offset + np.random.default_rng(sum(sizes)).normal(size=(sum(sizes), 4))
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    merged = reduce(merge, [moments_of(part) for part in parts])
    whole = moments_of(rows)
    assert merged.count.item() == len(rows)
    np.testing.assert_allclose(merged.mean.numpy(), whole.mean.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(merged.m2.numpy(), whole.m2.numpy(), rtol=tolerance)


def test_merged_moments_are_exact_when_the_means_are_exact_at_a_large_offset():
    # integers in batches of 4 whose sums are multiples of 4: no mean is rounded
    rows = 1e8 + np.array([0, 4, 8, 12, 1, 2, 3, 6, 20, 20, 20, 24, 7, 7, 7, 7], dtype=np.float64)
    merged = reduce(merge, [moments_of(part) for part in np.split(rows, 4)])
    mean, exact_variance = exact_moments(rows)
    assert merged.mean.item() == mean
    assert variance(merged).item() == pytest.approx(exact_variance, rel=1e-15)


@settings(max_examples=40, deadline=None)
@given(
    left=st.lists(st.floats(-1e3, 1e3), max_size=12),
    right=st.lists(st.floats(-1e3, 1e3), max_size=12),
)
def test_merging_gives_the_same_when_the_order_is_swapped(left, right):
    a, b = (moments_of(np.array(part, dtype=np.float64)) for part in (left, right))
    for one, other in zip(merge(a, b), merge(b, a), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-9)


def test_merging_changes_nothing_when_one_side_is_empty():
    rows = np.random.default_rng(1).normal(size=(6, 2))
    some, none = moments_of(rows), moments_of(np.zeros((0, 2)))
    for merged in (merge(some, none), merge(none, some)):
        assert all(torch.equal(x, y) for x, y in zip(merged, some, strict=True))


def test_moments_are_zero_when_no_row_has_weight():
    nothing = batch_moments(torch.full((3, 2), math.nan), torch.zeros(3))
    nothing = merge(nothing, nothing)
    assert nothing.count.item() == 0.0
    assert nothing.mean.tolist() == nothing.m2.tolist() == variance(nothing).tolist() == [0.0, 0.0]


def test_variance_is_zero_when_there_is_one_sample():
    assert variance(moments_of(np.array([1e8 + 0.1]))).item() == 0.0


def test_moments_are_exact_when_samples_are_bytes():
    pixels = torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8)
    found = batch_moments(pixels, torch.ones(2))
    assert found.mean.tolist() == [127.5, 255.0]
    assert variance(found).tolist() == [127.5**2, 0.0]
