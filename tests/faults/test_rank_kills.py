"""A few disturbances of two ranks; ``python -m faults.run --only rank_kills`` makes 110."""

import random
from pathlib import Path

import pytest

from faults import rank_kills
from faults.trial import OK


@pytest.mark.timeout(300)
def test_a_run_of_ranks_ends_the_same_when_they_are_killed_and_stopped(tmp_path: Path) -> None:
    whole = rank_kills._Run("lstm", tmp_path / "whole")
    whole.start(1)
    assert whole.finish() == ""
    run = rank_kills._Run("lstm", tmp_path / "lost")
    found = list(rank_kills.disturbed(run, ["all", "stop"], whole.path, 8.0, random.Random(3)))
    assert [outcome for _, outcome, _, _ in found] == [OK] * len(found)
    assert found


@pytest.mark.slow
def test_other_runs_differ(tmp_path: Path) -> None:
    paths = []
    for kind in ("lstm", "normalised"):
        run = rank_kills._Run(kind, tmp_path / kind)
        run.start(1)
        assert run.finish() == ""
        paths.append(run.path)
    assert rank_kills.compare(paths[0], paths[0])[0] == OK
    assert rank_kills.compare(*paths)[0].startswith("other rows of metrics")
