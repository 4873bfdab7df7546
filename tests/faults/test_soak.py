"""A few seconds of the soak; ``python -m faults.run --only soak`` trains for twenty minutes."""

from pathlib import Path

import pytest

from faults import soak
from faults.trial import OK


def test_nothing_piles_up_when_a_process_trains_on(tmp_path: Path) -> None:
    samples = soak.soak(5.0, tmp_path)
    trials = list(soak.judged(samples, seed=1))
    assert [trial.point for trial in trials] == [
        f"{phase}: {measure}" for phase in soak.PHASES for measure in soak.COUNTS
    ]
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    # all of it really happened: epochs, sinks, worker processes and shared memory
    assert all(phase[-1]["epoch"] >= soak.MIN_SAMPLES - 1 for phase in samples.values())
    assert all(sample["threads"] >= 5 for sample in soak.settled(samples["serial"]))
    assert all(sample["processes"] >= 2 for sample in samples["workers"])
    assert all(sample["shared_memory"] >= 4096 for sample in samples["workers"])
    assert all(sample["rss"] > 50 * 2**20 for sample in samples["lstm"])


def sample(seconds: float, **numbers: float) -> dict[str, float]:
    steady = dict.fromkeys((*soak.COUNTS, *soak.MEMORY), 7.0)
    return {"seconds": seconds, "epoch": seconds, **steady, **numbers}


def outcomes(samples: list[dict[str, float]]) -> dict[str, str]:
    return {t.point.split(": ")[1]: t.outcome for t in soak.judged({"serial": samples}, seed=1)}


def test_every_measure_is_judged_when_it_was_watched_for_long() -> None:
    found = outcomes([sample(second) for second in range(0, 240, 3)])
    assert found == dict.fromkeys((*soak.COUNTS, *soak.MEMORY), OK)


@pytest.mark.parametrize("measure", soak.COUNTS)
def test_a_count_is_wrong_when_it_changes_once_after_the_warm_up(measure: str) -> None:
    samples = [sample(second) for second in range(10)]
    samples[0][measure] = 1.0
    assert outcomes(samples)[measure] == OK
    samples[7][measure] = 8.0
    assert outcomes(samples)[measure] == "not constant: [7.0, 8.0]"


@pytest.mark.parametrize("measure", soak.MEMORY)
def test_memory_is_wrong_when_it_grows_faster_than_the_bound(measure: str) -> None:
    def grown(per_hour: float) -> str:
        seconds = range(0, 300, 3)
        return outcomes([sample(s, **{measure: 1e8 + per_hour * s / 3600}) for s in seconds])[
            measure
        ]

    assert grown(0.9 * soak.MAX_SLOPE) == OK
    assert grown(1.1 * soak.MAX_SLOPE).startswith("grows by")
    assert grown(-5.0 * soak.MAX_SLOPE) == OK


def test_the_slope_stays_when_a_few_points_are_far_off() -> None:
    points = [(float(x), 3.0 * x) for x in range(20)]
    points[4], points[15] = (4.0, 1e9), (15.0, -1e9)
    assert soak.slope_of(points) == pytest.approx(3.0)


def test_a_phase_is_wrong_when_nothing_was_seen() -> None:
    assert set(outcomes([]).values()) == {"only 0 samples"}
