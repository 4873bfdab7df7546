"""What came of a run, read from what `metta train` wrote."""

from pathlib import Path

import pytest

from metta.cli.main import main
from metta.jobs.run_result import read_result
from tests.jobs.training_jobs import trained


def test_the_result_is_that_of_the_run_as_a_whole_when_it_was_resumed(tmp_path: Path) -> None:
    run = trained(tmp_path, "first", "total_timesteps=320")
    first = read_result(run)
    assert (first["agent_step"], first["epoch"], len(first["episodes"])) == (320, 10, 3)
    assert first["score"] == pytest.approx(sum(first["episodes"]) / 3)
    assert main(["resume", "first", "total_timesteps=640", "--runs", str(tmp_path)]) == 0
    whole = read_result(run)
    assert (whole["agent_step"], whole["epoch"]) == (640, 20)
    assert whole["train_seconds"] > first["train_seconds"] > 0


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    found = read_result(trained(tmp_path, "first", "eval_episodes=0", "total_timesteps=32"))
    assert (found["score"], found["episodes"]) == (None, [])
