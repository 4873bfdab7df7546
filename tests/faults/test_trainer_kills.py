"""A few kills of trainers; ``python -m faults.run --only trainer_kills`` makes two hundred."""

import os
import subprocess
import time
from pathlib import Path

from faults import trainer_kills
from faults.trial import OK


def test_no_process_is_left_when_a_trainer_is_killed(tmp_path: Path) -> None:
    trials = list(trainer_kills.trials(4, 4, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 4
    assert sum(trial.detail["workers"] == trainer_kills.NUM_PROCESSES for trial in trials) >= 3
    assert sum("own server" in trial.point for trial in trials) == 1


def test_a_process_is_found_when_it_is_left() -> None:
    environ = {**os.environ, trainer_kills.MARKER: "abc"}
    command = ["sh", "-c", "echo started; exec sleep 60"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # a process that has only just started has no variables yet
        assert trainer_kills.marked("abc") == {process.pid}
        assert process.pid in trainer_kills.children_of(os.getpid())
        late = time.monotonic() + 0.05
        found = trainer_kills.await_none(lambda: trainer_kills.marked("abc"), late)
        assert found == "1 processes are left"
        process.kill()
    assert trainer_kills.await_none(lambda: trainer_kills.marked("abc"), late) == ""
