"""A few signals; ``python -m faults.run --only signals`` sends four hundred."""

from pathlib import Path

from faults import signals
from faults.trial import OK


def test_a_whole_checkpoint_is_left_when_a_signal_comes_at_random(tmp_path: Path) -> None:
    trials = list(signals.trials(2, 2, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len({trial.point for trial in trials}) == 2
