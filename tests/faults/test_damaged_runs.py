"""A short tier of the campaign: damaged files of a run are noticed, or change nothing."""

from pathlib import Path

import pytest

from faults.damaged_runs import trials, verdict
from faults.run_damage import Damage, all_damages
from faults.trial import OK
from metta.train.parsing.schema import leaves_of
from metta.train.train_config import TrainingConfig

COUNT = 6


@pytest.mark.timeout(300)
def test_a_damaged_run_is_noticed_or_resumes_to_the_same_bits(tmp_path: Path) -> None:
    found = list(trials(COUNT, 1, tmp_path))
    assert len(found) == COUNT
    assert {trial.point: trial.outcome for trial in found if trial.outcome != OK} == {}
    assert {trial.detail["how"] for trial in found} == {"refused", "warned of", "harmless"}


def test_every_setting_is_edited_once_when_the_campaign_is_whole() -> None:
    points = [damage.point for damage in all_damages(1)]
    assert len(points) == len(set(points)) >= 350
    assert {f"{path} edited" for path in leaves_of(TrainingConfig)} <= set(points)


def test_an_untyped_error_counts_as_wrong(tmp_path: Path) -> None:
    damage = Damage("a point", "run.json", lambda *_: None)
    for code, said in ((1, "Traceback ..."), (1, "OSError: disk"), (-9, "")):
        assert verdict(damage, code, said, tmp_path, tmp_path)[0] != OK
    assert verdict(damage, 2, "metta: ConfigError: edited", tmp_path, tmp_path) == (OK, "refused")
