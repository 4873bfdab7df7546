import pytest

from benchmarks.speed.comparison import Comparison, compare_runs


def test_the_ratio_is_the_median_of_pairs_when_the_machine_drifts() -> None:
    # the machine gets ten times slower: ratios of pairs are 2, 2, 3, of medians it would be 2
    found = compare_runs([200.0, 100.0, 30.0], [100.0, 50.0, 10.0])
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(3.0))


def test_the_interval_covers_the_pairs_when_there_are_few() -> None:
    found = compare_runs([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert found is not None
    assert found.ratio == 3.0
    # the median of five draws is 1 with probability 0.058 > 0.025
    assert (found.low, found.high) == (1.0, 5.0)


def test_the_interval_is_a_point_when_all_pairs_agree() -> None:
    assert compare_runs([3.0, 6.0], [2.0, 4.0]) == Comparison(1.5, 1.5, 1.5)


def test_the_interval_narrows_when_there_are_more_pairs() -> None:
    ratios = [1.0 + 0.01 * (n % 11) for n in range(110)]
    found = compare_runs(ratios, [1.0] * 110)
    assert found is not None
    assert found.high - found.low < 0.03
    assert found.low <= 1.05 <= found.high


def test_a_repetition_is_left_out_when_one_job_failed_in_it() -> None:
    assert compare_runs([2.0, None, 8.0], [1.0, 1.0, None]) == Comparison(2.0, 2.0, 2.0)
    assert compare_runs([None], [1.0]) is None


def test_the_same_numbers_give_the_same_interval_when_asked_twice() -> None:
    own = [1.0, 1.4, 0.9, 1.7]
    assert compare_runs(own, [1.0] * 4) == compare_runs(own, [1.0] * 4)


def test_two_digits_are_shown_when_it_is_printed() -> None:
    assert str(Comparison(2.0, 1.5, 2.345)) == "2.00 (1.50 to 2.35)"
