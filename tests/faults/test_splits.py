"""A killed and resumed run equals an undisturbed one: one epoch of some of the configurations."""

from pathlib import Path

from faults import splits
from faults.training import CONFIGS
from faults.trial import OK


def test_a_resumed_run_is_equal_to_the_bit_when_it_was_killed_after_an_epoch(
    tmp_path: Path,
) -> None:
    trials = list(splits.trials(2, 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len({trial.point.split(",")[0] for trial in trials} & set(CONFIGS)) == 2
    assert all(trial.digest for trial in trials)


def test_every_configuration_comes_first_when_only_some_splits_are_made() -> None:
    points = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert sorted(splits.one_of_each(points, 2)) == [("a", 1), ("b", 1)]
    assert sorted(splits.one_of_each(points, 9)) == points
