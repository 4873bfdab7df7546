"""A few kills of a sweep; ``python -m faults.run --only sweep_kills`` makes twenty."""

from pathlib import Path

import pytest

from faults import sweep_kills
from faults.trial import OK
from metta.loggers import EventLog, StatsClient, StatsLogger


@pytest.mark.slow
def test_a_sweep_ends_the_same_when_its_processes_are_killed(tmp_path: Path) -> None:
    trials = list(sweep_kills.trials(1, 3, tmp_path))
    assert {trial.outcome for trial in trials} == {OK}


def test_a_run_that_was_trained_twice_is_told_of(tmp_path: Path) -> None:
    epochs = sweep_kills.STEPS // 32
    for name, kept in (("once", 2), ("twice", 3)):
        (tmp_path / name).mkdir()
        with EventLog(tmp_path / name / "events.jsonl", name) as log:
            client, logger = StatsClient(log), StatsLogger(event_log=log)
            client.create_run(name)
            for epoch in (1, 2, 3):
                logger.log({"x": 1.0}, epoch=epoch, agent_step=32 * epoch)
            log.append("run_start", {"from_epoch": kept})
            for epoch in range(3, epochs + 1):
                logger.log({"x": 1.0}, epoch=epoch, agent_step=32 * epoch)
    assert sweep_kills.not_trained_once(tmp_path / "once") == ""
    assert "96, 96" in sweep_kills.not_trained_once(tmp_path / "twice")
