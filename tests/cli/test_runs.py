import json
import os
import socket
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.cli.run_summary import summarize
from metta.loggers import EventLog
from metta.train.train_config import TrainingConfig

DEAD_PID = 2**22 + 1
"""Above the largest process id of Linux."""


def make_run(
    folder: Path, *, steps: int = 1000, ended: str | None = "done", pid: int = DEAD_PID
) -> Path:
    """A run as its files tell of it."""
    folder.mkdir(parents=True)
    TrainingConfig().to_yaml(folder / "config.yaml")
    about = {"pid": pid, "host": socket.gethostname(), "started": "2026-01-01T00:00:00+00:00"}
    (folder / "run.lock").write_text(json.dumps(about))
    with EventLog(folder / "events.jsonl") as log:
        log.append("run_start", {"name": folder.name})
        metrics = {"overview/reward": 12.5, "eval_training/score": 20.0, "eval_training/x": 20.0}
        log.append("metrics", {"agent_step": steps, "epoch": 3, "metrics": metrics})
        log.append("metrics", {"agent_step": steps, "epoch": 4, "metrics": {"losses/a": 1.0}})
        if ended is not None:
            log.append("run_end", {"reason": ended})
    return folder


def test_a_line_is_shown_per_run_when_they_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "old")
    make_run(tmp_path / "new", steps=100_000)
    os.utime(tmp_path / "old" / "config.yaml", (1, 1))
    (tmp_path / "not-a-run").mkdir()
    assert main(["runs", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:7] == [
        "old",
        "CartPole-v1",
        "stopped",
        "1,000",
        "(1%)",
        "12.5",
        "20.0",
    ]
    assert lines[2].split()[:5] == ["new", "CartPole-v1", "done", "100,000", "(100%)"]


@pytest.mark.parametrize(
    ("ended", "pid", "status"),
    [(None, DEAD_PID, "died"), (None, os.getpid(), "running"), ("SIGINT", os.getpid(), "stopped")],
)
def test_the_status_tells_how_a_run_stands_when_it_did_not_finish(
    tmp_path: Path, ended: str | None, pid: int, status: str
) -> None:
    summary = summarize(make_run(tmp_path / "run", ended=ended, pid=pid))
    assert (summary.status, summary.reason) == (status, ended)


def test_a_resumed_run_runs_when_it_began_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", pid=os.getpid())
    with EventLog(folder / "events.jsonl") as log:
        log.append("run_start", {"name": "run"})
    assert summarize(folder).status == "running"


def test_a_run_is_shown_when_it_has_only_begun(tmp_path: Path) -> None:
    TrainingConfig().to_yaml(tmp_path / "run" / "config.yaml")
    summary = summarize(tmp_path / "run")
    assert (summary.status, summary.epoch, summary.reward, summary.score) == ("died", 0, None, None)


def test_details_are_shown_when_one_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "checkpoints" / "epoch_000004").mkdir(parents=True)
    assert main(["runs", "run", "--output", str(tmp_path)]) == 0
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (shown["status"], shown["reason"], shown["score"]) == ("stopped", "done", "20.0")
    assert shown["checkpoints"] == "epoch_000004"


def test_scripts_can_read_it_when_json_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    main(["runs", "--json", "--output", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["agent_step"], found["epoch"]) == ("run", 1000, 4)


def test_it_says_so_when_there_are_no_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--output", str(tmp_path / "nowhere")]) == 0
    assert "there are no runs" in capsys.readouterr().out
    assert main(["runs", "x", "--output", str(tmp_path)]) == 2
