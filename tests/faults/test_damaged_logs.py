"""A few damages; ``python -m faults.run --only damaged_logs`` makes 260."""

from pathlib import Path

from faults import damaged_logs
from faults.trial import OK


def test_every_damage_of_a_log_is_named_or_mended(tmp_path: Path) -> None:
    trials = list(damaged_logs.trials(6, 5, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 6
