"""A few reads beside a run; ``python -m faults.run --only racing_readers`` does more of them."""

from pathlib import Path

from faults.commands import Ended
from faults.racing_readers import reads, trials, verdict
from faults.trial import OK


def test_every_read_finds_a_policy_when_the_run_removes_what_was_listed(tmp_path: Path) -> None:
    found = list(trials(len(reads(tmp_path)), 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in found] == [
        *((name, OK) for name in reads(tmp_path)),
        ("the run meanwhile", OK),
    ]


def test_a_trial_is_wrong_when_no_policy_was_found() -> None:
    assert verdict("policies RUN", Ended(0, "")) == "no policy was listed"
    assert verdict("policies RUN", Ended(0, '{"run": "run"}\n')) == OK
    assert verdict("eval RUN:latest", Ended(1, "no policy")).startswith("ended with 1")
