"""Pictures of sweeps, and the mean learning curve over seeds."""

from pathlib import Path

import pytest

from metta.errors import ConfigError
from metta.runs.learning_curve import CurvePart, LearningCurve
from metta.sweeps.driver import SweepDriver
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.plots import draw_seeds, draw_sweep, mean_curve
from tests.sweeps.toy_sweeps import driven, toy_definition, write_log

_PNG = b"\x89PNG"


def curve(*points: tuple[float, float]) -> LearningCurve:
    return LearningCurve(parts=[CurvePart(step, mean, 0.0, 1) for step, mean in points])


def test_the_mean_is_taken_where_all_seeds_have_a_curve() -> None:
    steps, means, lows, highs = mean_curve(
        [curve((0, 0.0), (100, 100.0)), curve((50, 150.0), (200, 300.0)), curve()]
    )
    assert (steps[0], steps[-1]) == (50, 100)
    assert means[0] == pytest.approx((50 + 150) / 2)
    assert means[-1] == pytest.approx((100 + 200) / 2)
    assert all(low <= mean <= high for low, mean, high in zip(lows, means, highs, strict=True))
    assert mean_curve([curve((10, 3.0))]) == ([10], [3.0], [3.0], [3.0])
    assert mean_curve([curve()]) == ([], [], [], [])


@pytest.mark.parametrize("cost", ["none", "wall"])
def test_a_sweep_is_drawn_when_a_trial_is_complete(tmp_path: Path, cost: str) -> None:
    ranges = ["lr=1e-5..1e-2:log", "n_epochs=3..10", "activation=tanh,relu"]
    definition = toy_definition(tmp_path, ranges, trials=6, cost=cost)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        with pytest.raises(ConfigError, match="no trial of the sweep 'toy' is complete"):
            draw_sweep(tmp_path / "sweep.png", definition, ledger.events("toy"))
        driven(ledger, definition)
        events = ledger.events("toy")
    assert draw_sweep(tmp_path / "sweep.png", definition, events).read_bytes()[:4] == _PNG


def test_seeds_are_drawn_also_when_a_log_is_missing(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, [], trials=1, seeds=3, sampler="grid")
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driven(ledger, definition)
        trial = SweepDriver(ledger, definition, workers=1, say=print).trials[1]
    write_log(tmp_path / "toy" / "t001-s1", [1.0, 2.0])
    assert draw_seeds(tmp_path / "seeds.png", definition, trial).read_bytes()[:4] == _PNG
