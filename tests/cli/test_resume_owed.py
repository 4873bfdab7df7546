"""`metta resume` does the evaluations in the background that a killed or stopped run owes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metta.cli.main import main
from metta.loggers import read_events
from metta.loggers.events.history import metric_rows
from metta.store.policy_store import PolicyStore

EPOCHS = 4
SETTINGS = [
    "cartpole",
    "num_envs=2",
    "n_steps=8",
    "n_epochs=4",
    "num_minibatches=1",
    "learning_rate=0.05",
    "hidden_size=8",
    f"total_timesteps={EPOCHS * 16}",
    "evaluate_interval=1",
    "checkpoint_interval=1",
    "keep_last=1",
    "background=true",
    "verbose=false",
]
ENDLESS = "eval_episodes=1_000_000"


def metta(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "metta.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def done(*words: str) -> str:
    process = metta(*words)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def evaluations(run: Path) -> list[tuple[int, int, str, Any]]:
    """Those that count, each as often as it is in the log."""
    found: list[tuple[int, int, str, Any]] = []
    for event in read_events(run / "events.jsonl"):
        about = event.payload
        if event.kind == "run_start":
            found = [one for one in found if one[0] <= about["from_epoch"]]
        elif event.kind == "evaluation":
            name = Path(about["policy_uri"]).name
            found.append((about["epoch"], about["agent_step"], name, about["scores"]))
    return found


def rows(run: Path) -> list[tuple[int, int, dict[str, float]]]:
    """Which rows there are, and the scores in them."""
    return [
        (row.epoch, row.agent_step, {k: v for k, v in row.metrics.items() if k.startswith("eval_")})
        for row in metric_rows(run / "events.jsonl")
    ]


def table(run: Path) -> list[list[str]]:
    lines = [line.split(",") for line in (run / "evaluations.csv").read_text().splitlines()]
    at = [n for n, name in enumerate(lines[0]) if name == "epoch" or name.startswith("eval_")]
    return [[line[n] for n in at] for line in lines]


def best(run: Path) -> tuple[int, float]:
    record = PolicyStore(run / "checkpoints").best()
    assert record is not None
    return record.epoch, record.metadata["score"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    done("train", *SETTINGS, "eval_episodes=6", "--run", "a", "--output", str(output))
    found = evaluations(output / "a")
    assert [one[0] for one in found] == [1, 2, 3, 4]
    assert len({json.dumps(one[3]) for one in found}) > 1
    return output / "a"


def is_waiting_for_scores(run: Path) -> bool:
    """Whether the last epoch is saved; nothing but evaluations is left."""
    return (run / "checkpoints" / f"epoch_{EPOCHS:06d}").exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "background"),
    [(signal.SIGKILL, "true"), (signal.SIGTERM, "true"), (signal.SIGKILL, "false")],
)
def test_resume_does_the_evaluations_that_a_run_owes(
    undisturbed: Path, tmp_path: Path, number: signal.Signals, background: str
) -> None:
    run = tmp_path / "b"
    process = metta("train", *SETTINGS, ENDLESS, "--run", "b", "--output", str(tmp_path))
    try:
        while not is_waiting_for_scores(run):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate()
    finally:
        process.kill()
    code = -number if number == signal.SIGKILL else 128 + number
    assert process.returncode == code, out
    assert evaluations(run) == []
    if number == signal.SIGTERM:
        assert "continue with: metta resume" in out
        ended = [e.payload for e in read_events(run / "events.jsonl") if e.kind == "run_end"]
        assert [one["outcome"] for one in ended] == ["stopped"]
    done("resume", str(run), "eval_episodes=6", f"background={background}")
    found, expected = evaluations(run), evaluations(undisturbed)
    assert json.dumps(found) == json.dumps(expected)
    assert best(run) == best(undisturbed)
    assert list((run / "checkpoints" / "owed").rglob("*.safetensors")) == []
    if background == "true":
        assert rows(run) == rows(undisturbed)
        assert table(run) == table(undisturbed)
    lines = (run / "events.jsonl").read_bytes()
    assert main(["resume", str(run), "eval_episodes=6", f"background={background}"]) == 0
    again = (run / "events.jsonl").read_bytes()[len(lines) :]
    assert b'"evaluation"' not in again
