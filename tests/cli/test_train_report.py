"""What `metta train` says at the end, and the curve that it draws."""

import math
import os
import signal
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.cli.training import learning_curve
from metta.loggers import EventLog
from metta.rl.evaluate.evaluator import PolicyEvaluator

SMALL = ["num_envs=2", "n_steps=8", "n_epochs=1", "num_minibatches=1", "hidden_size=8"]


def curve_of(folder: Path, *parts: list[tuple[int, float | None]]) -> list[tuple[float, float]]:
    """The curve of a run with epochs of 32 steps that continued before the first row of each part."""
    with EventLog(folder / "events.jsonl") as log:
        for rows in parts:
            log.append("run_start", {"name": "run", "from_epoch": rows[0][0] // 32 - 1})
            for step, reward in rows:
                metrics = {} if reward is None else {"overview/reward": reward}
                log.append("metrics", {"agent_step": step, "epoch": step // 32, "metrics": metrics})
    curve = learning_curve(folder / "events.jsonl")
    return [(row["agent_step"], row["episode_return"]) for row in curve]


def test_the_curve_runs_forward_when_a_crash_made_rows_repeat(tmp_path: Path) -> None:
    first = [(32, 1.0), (64, 2.0), (96, 3.0), (128, 4.0), (160, 5.0)]
    again = [(128, 40.0), (160, 50.0), (192, 60.0)]
    assert curve_of(tmp_path, first, again) == [*first[:3], *again]


def test_the_curve_begins_anew_when_the_run_did(tmp_path: Path) -> None:
    assert curve_of(tmp_path, [(32, 1.0), (64, 2.0)], [(32, 7.0)]) == [(32, 7.0)]


def test_the_newest_number_counts_when_a_step_has_two_rows(tmp_path: Path) -> None:
    rows = [(32, 1.0), (64, 2.0), (64, 3.0), (64, None)]
    assert curve_of(tmp_path, rows) == [(32, 1.0), (64, 3.0)]


def test_a_gap_is_left_when_a_row_has_no_return(tmp_path: Path) -> None:
    (step, reward), other = curve_of(tmp_path, [(32, None), (64, 2.0)])
    assert (step, other) == (32, (64, 2.0))
    assert math.isnan(reward)


@pytest.fixture
def terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes during the first evaluation."""
    evaluate, sent = PolicyEvaluator.evaluate, []

    def interrupted(evaluator: PolicyEvaluator, *given: object, **more: object) -> object:
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(evaluator, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PolicyEvaluator, "evaluate", interrupted)


def train(folder: Path, *words: str) -> int:
    arguments = ["train", "cartpole", *SMALL, "eval_episodes=2", *words, "--run", "one"]
    return main([*arguments, "--output", str(folder)])


@pytest.mark.usefixtures("terminated")
def test_the_run_is_done_when_a_signal_comes_during_its_last_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "total_timesteps=32") == 0
    shown = capsys.readouterr().out
    assert "over 2 fresh episodes after 32 steps" in shown
    assert "stopped" not in shown
    assert "metta resume" not in shown


@pytest.mark.usefixtures("terminated")
def test_the_run_is_stopped_when_a_signal_comes_before_the_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "total_timesteps=64", "evaluate_interval=1") == 143
    shown = capsys.readouterr().out
    assert "stopped at 16 steps (SIGTERM was received); continue with: metta resume" in shown
    assert "fresh episodes" not in shown
