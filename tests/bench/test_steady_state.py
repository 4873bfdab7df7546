import pytest

from benchmarks.speed.steady_state import Point, Sample, steady_state

POINTS = [Point(1000 * n, 10.0 + n) for n in range(1, 11)]
"""1000 steps each second, from second 11 to second 20."""


def sample(time: float, tree: float, busy: float, observer: float = 0.0, stolen: float = 0.0):
    return Sample(time, tree, observer, busy, stolen)


def test_the_first_fifth_is_left_out_when_it_was_slow() -> None:
    # 100 seconds for the first 1000 steps, then 1000 steps per second
    points = [Point(1000, 100.0), *(Point(1000 * n, 98.0 + n) for n in range(2, 11))]
    found = steady_state(points, [sample(0, 0, 0), sample(200, 0, 0)])
    assert found is not None
    assert found.steps_per_second == pytest.approx(1000.0)


def test_processor_time_is_that_of_the_steady_part_when_samples_lie_around_it() -> None:
    # from second 12 (2000 steps) to second 20 (10,000): half a core, so 4 seconds for 8000 steps
    found = steady_state(POINTS, [sample(0, 0, 0), sample(40, 20, 20)])
    assert found is not None
    assert found.cpu_seconds_per_million == pytest.approx(500.0)
    assert found.foreign_cores == pytest.approx(0.0)


def test_others_are_noticed_when_they_use_the_machine() -> None:
    # in 40 s: the job 20, the one who looks 2, all together 32: others 10, and 4 were stolen
    samples = [sample(0, 0, 0), sample(40, 20, 32, observer=2, stolen=4)]
    found = steady_state(POINTS, samples)
    assert found is not None
    assert found.foreign_cores == pytest.approx(10 / 40)
    assert found.stolen_cores == pytest.approx(4 / 40)


def test_others_do_not_count_when_they_only_worked_in_the_first_fifth() -> None:
    samples = [sample(0, 0, 0), sample(11.5, 0, 10), sample(12, 0, 10), sample(20, 8, 18)]
    found = steady_state(POINTS, samples)
    assert found is not None
    assert found.foreign_cores == pytest.approx(0.0)


def test_the_nearest_sample_counts_when_there_is_none_around() -> None:
    found = steady_state(POINTS, [sample(13, 3, 3), sample(14, 4, 4)])
    assert found is not None
    assert found.cpu_seconds_per_million == pytest.approx(1 / 8000 * 1e6)


@pytest.mark.parametrize(
    "points",
    [
        [],
        POINTS[:1],
        [Point(5, 1.0), Point(5, 2.0)],  # no progress
        [Point(5, 1.0), Point(9, 1.0)],  # no time
    ],
)
def test_there_is_no_speed_when_too_little_was_reported(points: list[Point]) -> None:
    assert steady_state(points, [sample(0, 0, 0), sample(40, 1, 1)]) is None


def test_there_is_no_speed_when_nothing_was_seen() -> None:
    assert steady_state(POINTS, []) is None
