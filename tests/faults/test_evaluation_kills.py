"""A few kills; ``python -m faults.run --only evaluation_kills`` makes fifty."""

import json
from pathlib import Path

import pytest

from faults import evaluation_kills
from faults.trial import OK


def test_no_score_is_lost_when_runs_are_killed_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one kill between the first score and the others, and then the run is left alone
    monkeypatch.setattr(evaluation_kills, "_MAX_KILLS", 1)
    monkeypatch.setattr(evaluation_kills, "_POINTS", ("a score arrives",))
    monkeypatch.setattr(evaluation_kills, "_PACE_SECONDS", 0.05)
    trials = list(evaluation_kills.trials(1, 2, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert [trial.point.split(":")[0] for trial in trials] == ["nothing", "a score arrives"]


def test_a_lost_score_is_seen(tmp_path: Path) -> None:
    for name, epochs in (("whole", [1, 2]), ("killed", [1])):
        (tmp_path / name).mkdir()
        events = [
            {
                "run": "a",
                "sequence": epoch,
                "time": 0.0,
                "kind": "evaluation",
                "payload": {"epoch": epoch, "agent_step": 9, "policy_uri": None, "scores": {}},
            }
            for epoch in epochs
        ]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (tmp_path / name / "events.jsonl").write_text(lines)
    found = evaluation_kills.difference_of_scores(tmp_path / "whole", tmp_path / "killed")
    assert found.startswith("other evaluations: [(1, ")
