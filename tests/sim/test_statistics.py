"""Known answers of statistics, and how often intervals hold the truth."""

import math
import random

import numpy as np
import pytest

from metta.errors import ConfigError
from metta.seeding import numpy_generator
from metta.sim import statistics
from metta.sim.statistics import (
    Estimate,
    best_by_lower_bound,
    estimate,
    interquartile_mean,
    mean_of_means,
    missing_data,
    pooled_interquartile_mean,
    probability_of_improvement,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([8, 1, 7, 2, 6, 3, 5, 4], 4.5),  # 1 2 | 3 4 5 6 | 7 8
        ([100, 2, 1, 0], 1.5),  # 0 | 1 2 | 100
        ([1, 2, 6], 3.0),  # too few to cut
        ([-50, 1, 2, 3, 1000], 2.0),  # -50 | 1 2 3 | 1000
        ([5], 5.0),
    ],
)
def test_the_interquartile_mean_is_the_known_one_when_scores_are_few(
    scores: list[float], expected: float
) -> None:
    assert interquartile_mean(np.array(scores)) == expected


def test_each_row_is_taken_alone_when_there_are_repetitions() -> None:
    rows = np.array([[1, 2, 3, 100], [0, 4, 6, 9]])
    assert interquartile_mean(rows).tolist() == [2.5, 5.0]


def test_scores_are_pooled_when_there_are_several_simulations() -> None:
    strata = [np.array([1.0, 2.0]), np.array([3.0, 100.0])]
    assert pooled_interquartile_mean(strata) == 2.5
    assert mean_of_means(strata) == (1.5 + 51.5) / 2


def test_the_interval_is_a_point_when_all_scores_are_equal() -> None:
    found = estimate(pooled_interquartile_mean, [np.full(8, 3.0)])
    assert found == Estimate(3.0, 3.0, 3.0, 8)


def coverage(cases: list[tuple[Estimate, float]]) -> float:
    return sum(found.low <= truth <= found.high for found, truth in cases) / len(cases)


def test_intervals_hold_the_truth_as_often_as_they_say_when_scores_are_normal() -> None:
    """The percentile bootstrap of 40 scores covers a little less than its 95 %."""
    cases = []
    for case in range(300):
        generator = numpy_generator(case, "coverage")
        scores = generator.normal(7.0, 2.0, 40)
        cases.append((estimate(pooled_interquartile_mean, [scores], seed=case), 7.0))
    assert 0.90 <= coverage(cases) <= 0.985


def test_intervals_are_those_of_the_strata_when_simulations_differ_in_scale() -> None:
    """Unstratified resampling would mix 0 and 1000, and give intervals hundreds wide."""
    cases = []
    for case in range(200):
        generator = numpy_generator(case, "coverage")
        strata = [generator.normal(0.0, 1.0, 25), generator.normal(1000.0, 4.0, 25)]
        cases.append((estimate(mean_of_means, strata, seed=case), 500.0))
    assert 0.89 <= coverage(cases) <= 0.985
    # the deviation of the mean of means: sqrt(1 / 25 + 16 / 25) / 2 = 0.412; 2 x 1.96 of it are 1.62
    widths = [found.high - found.low for found, _ in cases]
    assert np.mean(widths) == pytest.approx(1.62, rel=0.1)


def test_improvement_is_the_known_one_when_pairs_can_be_counted() -> None:
    # 1 > 0, 1 < 2, 2 > 0, 2 = 2
    found = probability_of_improvement([np.array([1.0, 2.0])], [np.array([0.0, 2.0])])
    assert found.value == (1 + 0 + 1 + 0.5) / 4
    assert found.count == 4


def test_improvement_is_the_mean_over_simulations_when_there_are_several() -> None:
    high, low = np.full(5, 2.0), np.full(3, 1.0)
    found = probability_of_improvement([high, low, low], [low, high, low])
    assert found.value == (1.0 + 0.0 + 0.5) / 3


def test_improvement_meets_the_closed_form_when_scores_are_normal() -> None:
    """P(X > Y) = Phi(d / sqrt 2) for unit deviations and a distance d of the means."""
    for distance in (-0.5, 0.0, 1.0, 2.0):
        truth = (1.0 + math.erf(distance / 2.0)) / 2.0
        generator = numpy_generator(1, "normal")
        ours, others = generator.normal(distance, 1.0, 1500), generator.normal(0.0, 1.0, 1500)
        found = statistics._improvement([ours], [others])
        assert float(found) == pytest.approx(truth, abs=0.03)  # three deviations of about 0.01


def test_intervals_of_improvement_hold_the_truth_when_scores_are_normal() -> None:
    truth, cases = (1.0 + math.erf(0.25)) / 2.0, []
    for case in range(100):
        generator = numpy_generator(case, "coverage")
        ours, others = generator.normal(0.5, 1.0, 20), generator.normal(0.0, 1.0, 20)
        cases.append((probability_of_improvement([ours], [others], seed=case), truth))
    assert 0.87 <= coverage(cases) <= 0.99


def test_one_is_better_where_the_other_is_worse_when_sides_change() -> None:
    generator = numpy_generator(2, "sides")
    ours, others = [generator.normal(0.3, 1.0, 30)], [generator.normal(0.0, 1.0, 20)]
    there, back = (
        probability_of_improvement(ours, others),
        probability_of_improvement(others, ours),
    )
    assert there.value + back.value == pytest.approx(1.0)


def test_intervals_are_equal_when_seeds_are_and_nothing_global_moves() -> None:
    scores = [numpy_generator(3, "scores").normal(size=30)]
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002 (what must not move)
    first, second, third = (
        estimate(pooled_interquartile_mean, scores, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert (first.low, first.high) != (third.low, third.high)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002 (as above)


def test_intervals_stay_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [numpy_generator(3, "scores").normal(10.0, 1.0, size=50)]
    whole = estimate(pooled_interquartile_mean, scores)
    monkeypatch.setattr(statistics, "_MAX_NUMBERS", 999)
    pieces = estimate(pooled_interquartile_mean, scores)
    assert statistics._blocks(50) == [19] * 105 + [5]
    assert pieces.low == pytest.approx(whole.low, abs=0.05)
    assert pieces.high == pytest.approx(whole.high, abs=0.05)


def test_the_surer_one_is_best_when_the_highest_score_is_a_guess() -> None:
    estimates = {"wild": Estimate(10.0, -5.0, 30.0, 4), "steady": Estimate(8.0, 7.0, 9.0, 40)}
    assert best_by_lower_bound(estimates) == "steady"


def test_what_is_needed_is_said_when_there_is_too_little_data() -> None:
    assert missing_data({"a": 3, "b": 5}, 3, "runs") == ""
    assert (
        missing_data({"a": 2, "b": 5, "c": 1}, 3, "runs")
        == "a has 2, c has 1; at least 3 runs of each are needed"
    )


@pytest.mark.parametrize(
    ("strata", "words"),
    [
        ([], "has no scores"),
        ([np.ones(3), np.zeros(0)], "has no scores"),
        ([np.array([1.0, math.nan])], "finite"),
    ],
)
def test_a_config_error_is_raised_when_scores_cannot_be_used(
    strata: list[np.ndarray], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        estimate(mean_of_means, strata)
    with pytest.raises(ConfigError, match=words):
        probability_of_improvement(strata, strata)


def test_a_config_error_is_raised_when_sides_have_different_simulations() -> None:
    with pytest.raises(ConfigError, match="2 simulations cannot be compared with those of 1"):
        probability_of_improvement([np.ones(2), np.ones(2)], [np.ones(2)])
