"""A few kills of what collects; ``python -m faults.run --only collector_kills node_kills`` makes 120."""

import importlib.util
from pathlib import Path

import pytest

from faults import collector_kills, node_kills
from faults.trial import OK


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed"
)
def test_what_collects_may_be_killed_at_any_instant(tmp_path: Path) -> None:
    trials = list(collector_kills.trials(2, 3, tmp_path))
    assert {trial.outcome for trial in trials} == {OK}
    assert {trial.point.partition(",")[0] for trial in trials} == {"process", "ray"}
    assert len({trial.digest for trial in trials}) == 1


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed"
)
def test_a_node_may_go_at_any_instant(tmp_path: Path) -> None:
    [trial] = node_kills.trials(1, 3, tmp_path)
    assert trial.outcome == OK
    assert trial.detail["actors"] >= 1


def test_other_samples_are_told_of(tmp_path: Path) -> None:
    for name, text in (("whole", "1 a\n2 b\n"), ("own", "1 a\n2 a\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples").write_text(text)
    assert collector_kills.compare(tmp_path / "whole", tmp_path / "own", 0)[0] == "other samples"
    assert collector_kills.compare(tmp_path / "whole", tmp_path / "own", 1)[0] == "exit code 1"
