"""Learning curves: up to the newest record, thinned out, and averaged at common steps."""

import math
from pathlib import Path

import pytest

from metta.sweeps.curves import mean_curve, reward_curve
from tests.sweeps.toy_sweeps import write_log


def test_the_mean_is_taken_where_all_seeds_have_a_curve() -> None:
    steps, means, lows, highs = mean_curve(
        [[(0, 0.0), (100, 100.0)], [(50, 150.0), (200, 300.0)], []]
    )
    assert (steps[0], steps[-1]) == (50, 100)
    assert means[0] == pytest.approx((50 + 150) / 2)
    assert means[-1] == pytest.approx((100 + 200) / 2)
    assert all(low <= mean <= high for low, mean, high in zip(lows, means, highs, strict=True))
    assert mean_curve([[(10, 3.0)]]) == ([10], [3.0], [3.0], [3.0])
    assert mean_curve([[]]) == ([], [], [], [])


def test_a_curve_has_the_first_and_the_newest_return_however_long_the_log_is(
    tmp_path: Path,
) -> None:
    rewards = [math.nan, *range(1, 1000)]
    write_log(tmp_path, rewards, total=len(rewards))
    found = reward_curve(tmp_path / "events.jsonl")
    assert (found[0], found[-1]) == ((2, 1), (1000, 999))
    assert 100 <= len(found) <= 300
    assert all(step == reward + 1 for step, reward in found)


def test_a_curve_is_empty_when_there_is_no_log(tmp_path: Path) -> None:
    assert reward_curve(tmp_path / "events.jsonl") == []
