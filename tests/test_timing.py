import pytest

from metta.timing import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> Stopwatch:
    return Stopwatch(clock)


def test_time_adds_up_when_a_timer_runs_twice(timer: Stopwatch, clock: Clock) -> None:
    for seconds in (2.0, 3.0):
        with timer("rollout"):
            clock.now += seconds
        clock.now += 10.0
    assert timer.elapsed("rollout") == 5.0


def test_a_running_timer_counts_when_it_is_read(timer: Stopwatch, clock: Clock) -> None:
    timer.start("total")
    clock.now += 4.0
    assert timer.elapsed("total") == 4.0
    clock.now += 1.0
    assert timer.elapsed_all() == {"total": 5.0}


def test_a_lap_covers_the_time_since_the_last_when_timers_run_on(
    timer: Stopwatch, clock: Clock
) -> None:
    timer.start("total")
    with timer("train"):
        clock.now += 3.0
    assert timer.lap_all() == {"total": 3.0, "train": 3.0}
    clock.now += 2.0
    assert timer.lap_all() == {"total": 2.0, "train": 0.0}
    assert timer.elapsed("total") == 5.0


def test_timers_overlap_when_they_run_side_by_side(timer: Stopwatch, clock: Clock) -> None:
    with timer("outer"):
        clock.now += 1.0
        with timer("inner"):
            clock.now += 2.0
    assert timer.elapsed_all() == {"outer": 3.0, "inner": 2.0}


def test_a_timer_stops_when_its_block_raises(timer: Stopwatch, clock: Clock) -> None:
    def fail() -> None:
        clock.now += 1.0
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), timer("rollout"):
        fail()
    clock.now += 5.0
    assert timer.elapsed("rollout") == 1.0


def test_nothing_changes_when_a_running_timer_starts_or_a_resting_one_stops(
    timer: Stopwatch, clock: Clock
) -> None:
    timer.stop("rollout")
    assert timer.elapsed("rollout") == 0.0
    timer.start("rollout")
    clock.now += 1.0
    timer.start("rollout")
    clock.now += 1.0
    timer.stop_all()
    clock.now += 1.0
    timer.stop("rollout")
    assert timer.elapsed("rollout") == 2.0


def test_the_clock_moves_when_none_is_given() -> None:
    timer = Stopwatch()
    with timer("real"):
        pass
    assert timer.elapsed("real") >= 0.0


def test_seconds_that_others_measure_count_from_when_they_are_included(
    timer: Stopwatch, clock: Clock
) -> None:
    seconds = {"reduce": 5.0}
    timer.include(lambda: seconds)
    with timer("train"):
        clock.now += 2.0
    seconds |= {"reduce": 8.0, "wait": 1.0}
    timer.add("train", 0.5)
    assert timer.elapsed_all() == {"train": 2.5, "reduce": 3.0, "wait": 1.0}
    assert timer.lap_all() == timer.elapsed_all()
    seconds["wait"] = 4.0
    assert timer.lap_all() == {"train": 0.0, "reduce": 0.0, "wait": 3.0}
