"""What `metta train` says at the end, and the curve that it draws."""

import os
import re
import signal
from pathlib import Path

import pytest

from metta.cli.main import main
from metta.rl.evaluate.evaluator import PolicyEvaluator

SMALL = ["num_envs=2", "n_steps=8", "n_epochs=1", "num_minibatches=1", "hidden_size=8"]


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
    assert re.search(
        r"return of \S+ \(95 % interval \S+ \.\. \S+\) over 2 fresh episodes after 32", shown
    )
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
