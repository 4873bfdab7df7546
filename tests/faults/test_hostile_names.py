"""A short tier of the campaign: names lead nowhere else."""

from pathlib import Path

from faults import hostile_names
from faults.forked import Watched
from faults.hostile_names import DOORS, NAMES, knock, trials, verdict
from faults.trial import OK

COUNT = 40


def test_no_name_leads_elsewhere_when_it_is_tried_at_every_door(tmp_path: Path) -> None:
    found = list(trials(COUNT, 1, tmp_path))
    assert len(found) == COUNT * len(DOORS)
    assert {trial.point: trial.outcome for trial in found if trial.outcome != OK} == {}
    results = [trial.detail["found"] for trial in found]
    assert sum("error" in result for result in results) > len(results) // 2
    assert any("place" in result for result in results), "no name was ever taken"


def test_known_names_are_many_when_they_are_counted() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(NAMES) > 80


def test_a_trial_is_wrong_when_a_door_leads_out(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)

    def escape(root: Path, name: str) -> Path:
        return root / name

    def write(root: Path, name: str) -> Path:
        (root.parent / "beside").write_text(name)
        return root

    monkeypatch.setitem(hostile_names.DOORS, "a hole", escape)
    monkeypatch.setitem(hostile_names.DOORS, "a pen", write)
    assert verdict(Watched(knock(tmp_path, ("../x", "a hole")))) != OK
    assert verdict(Watched(knock(tmp_path, ("x", "a hole")))) == OK
    assert verdict(Watched(knock(tmp_path, ("x", "a pen")))) != OK
    assert verdict(Watched(death="hung")) != OK
