"""Pictures of sweeps and of seeds."""

from pathlib import Path

import pytest

from metta.errors import ConfigError
from metta.sweeps.driver import SweepDriver
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.plots import draw_seeds, draw_sweep
from tests.sweeps.toy_sweeps import driven, toy_definition, write_log

_PNG = b"\x89PNG"


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
