"""Delays change nothing: two of the campaign's runs."""

from pathlib import Path

from faults import overlap_delays
from faults.trial import OK


def test_a_run_that_collects_ahead_gives_the_same_bits_whatever_takes_long(tmp_path: Path) -> None:
    trials = list(overlap_delays.trials(2, 3, tmp_path))
    assert [trial.outcome for trial in trials] == [OK, OK]
    assert len({trial.digest for trial in trials}) == 1
