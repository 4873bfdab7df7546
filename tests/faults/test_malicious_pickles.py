"""A short tier of the campaign: nothing runs when programs are offered as data."""

from pathlib import Path

from faults.forked import Watched
from faults.malicious_pickles import PLACES, trials, verdict
from faults.payloads import payloads
from faults.trial import OK

COUNT = 12


def test_nothing_runs_when_programs_are_offered_as_data(tmp_path: Path) -> None:
    found = list(trials(COUNT, 1, tmp_path))
    assert len(found) >= COUNT * len(PLACES)
    assert len({trial.point for trial in found}) == len(found)
    assert {trial.point: trial.outcome for trial in found if trial.outcome != OK} == {}
    assert not (tmp_path / "canary").exists()
    assert any((tmp_path / "exploded").iterdir()), "no payload does anything"


def test_there_are_enough_payloads_when_they_are_counted() -> None:
    assert len(payloads("canary")) >= 50
    assert len(PLACES) >= 10


def test_a_trial_is_wrong_when_a_payload_ran_or_does_nothing() -> None:
    harmless = {"ran": False, "error": "PolicyError", "should_name": True, "named": True}
    live = Watched(True)
    assert verdict(live, Watched(harmless)) == OK
    assert verdict(Watched(False), Watched(harmless)) != OK
    assert verdict(live, Watched(death="ended with -11")) != OK
    wrongs = {"ran": True}, {"error": None}, {"wrong": "ValueError"}, {"named": False}
    for wrong in wrongs:
        assert verdict(live, Watched(harmless | wrong)) != OK
