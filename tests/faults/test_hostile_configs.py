"""A short tier of the campaign: hostile configurations are refused by name."""

from pathlib import Path

from faults.config_texts import ANY, REFUSED
from faults.forked import Watched
from faults.hostile_configs import trials, verdict
from faults.trial import OK

COUNT = 120


def test_every_bad_config_is_explained_when_it_is_read(tmp_path: Path) -> None:
    found = list(trials(COUNT, 1, tmp_path))
    assert len(found) == COUNT
    assert {trial.point for trial in found} == {*REFUSED, *ANY}
    assert {trial.point: trial.outcome for trial in found if trial.outcome != OK} == {}
    assert sum("message" in trial.detail["found"] for trial in found) > COUNT // 2
    assert not (tmp_path / "canary").exists()


def test_a_trial_is_wrong_when_a_config_ran_or_was_taken_or_took_long() -> None:
    refused = {"message": "x", "ran": False}
    assert verdict("laughs", Watched(refused)) == OK
    assert verdict("damaged", Watched({"taken": True, "ran": False})) == OK
    assert verdict("laughs", Watched({"taken": True, "ran": False})) != OK
    for wrong in ({"ran": True}, {"wrong": "KeyError"}):
        assert verdict("damaged", Watched(refused | wrong)) != OK
    for cost in ({"cpu_seconds": 4.1}, {"grown_bytes": 101 * 2**20}, {"death": "hung"}):
        assert verdict("damaged", Watched(refused, **cost)) != OK
