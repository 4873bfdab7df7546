"""`metta resume` does the evaluations in the background that a killed or stopped run owes."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from metta.jobs.ledger import JobLedger
from metta.loggers import read_events
from metta.loggers.events.history import metric_rows
from metta.store.policy_store import PolicyStore
from tests.children import ended, start_metta
from tests.jobs.workers import working

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
    "evaluation.where=process",
    "verbose=false",
    "final_replay=false",
]
ENDLESS = "eval_episodes=1_000_000"


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
    assert main(["train", *SETTINGS, "eval_episodes=6", "--run", "a", "--output", str(output)]) == 0
    found = evaluations(output / "a")
    assert [one[0] for one in found] == [1, 2, 3, 4]
    assert len({json.dumps(one[3]) for one in found}) > 1
    return output / "a"


def is_waiting_for_scores(run: Path) -> bool:
    """Whether the last epoch is saved; nothing but evaluations is left."""
    return (run / "checkpoints" / f"epoch_{EPOCHS:06d}").exists()


def stop(zygote: Zygote, output: Path, number: signal.Signals) -> Path:
    """A run whose process got a signal when it waited for scores only."""
    run = output / "b"
    words = ["train", *SETTINGS, ENDLESS, "--run", "b", "--output", str(output)]
    process = start_metta(zygote, words, output)
    while not is_waiting_for_scores(run):
        with pytest.raises(TimeoutError):
            process.wait(0.05)
    process.kill(number)
    code, out, _ = ended(process, output)
    assert code == (-number if number == signal.SIGKILL else 128 + number), out
    assert ("continue with: metta resume" in out) == (number == signal.SIGTERM)
    assert evaluations(run) == []
    return run


@pytest.fixture(scope="module")
def killed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stop(zygote, tmp_path_factory.mktemp("killed"), signal.SIGKILL)


def resume(run: Path, where: str, undisturbed: Path) -> None:
    """Resume twice: the first time does all that is owed, the second time nothing."""
    again = ["resume", str(run), "eval_episodes=6", f"evaluation.where={where}"]
    assert main(again) == 0
    assert json.dumps(evaluations(run)) == json.dumps(evaluations(undisturbed))
    assert best(run) == best(undisturbed)
    assert list((run / "checkpoints" / "owed").rglob("*.safetensors")) == []
    lines = (run / "events.jsonl").read_bytes()
    assert main(again) == 0
    assert b'"evaluation"' not in (run / "events.jsonl").read_bytes()[len(lines) :]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["process", "here"])
def test_resume_does_the_evaluations_that_a_killed_run_owes(
    undisturbed: Path, killed: Path, tmp_path: Path, where: str
) -> None:
    run = shutil.copytree(killed, tmp_path / "b")
    resume(run, where, undisturbed)
    if where == "process":
        assert rows(run) == rows(undisturbed)
        assert table(run) == table(undisturbed)


@pytest.mark.timeout(600)
def test_resume_does_the_evaluations_that_a_stopped_run_owes(
    undisturbed: Path, zygote: Zygote, tmp_path: Path
) -> None:
    run = stop(zygote, tmp_path, signal.SIGTERM)
    ends = [e.payload for e in read_events(run / "events.jsonl") if e.kind == "run_end"]
    assert [one["outcome"] for one in ends] == ["stopped"]
    resume(run, "process", undisturbed)
    assert rows(run) == rows(undisturbed)
    assert table(run) == table(undisturbed)


@pytest.mark.timeout(600)
def test_resume_collects_what_workers_did_for_a_run_that_was_killed(
    undisturbed: Path, zygote: Zygote, tmp_path: Path
) -> None:
    run, words = tmp_path / "b", ["evaluation.where=queue", "eval_episodes=6"]
    settings = [one for one in SETTINGS if not one.startswith("evaluation.where")]
    process = start_metta(
        zygote, ["train", *settings, *words, "--run", "b", "--output", str(tmp_path)], tmp_path
    )
    with JobLedger(str(tmp_path / "stats.db")) as ledger:
        while not is_waiting_for_scores(run) or len(ledger.records()) < EPOCHS:
            with pytest.raises(TimeoutError):
                process.wait(0.05)
        process.kill(signal.SIGKILL)
        ended(process, tmp_path)
        assert main(["worker", "--runs", str(tmp_path), "--idle", "0"]) == 0
        # what is done already is not done again: no worker is there
        assert main(["resume", str(run)]) == 0
        assert [(one.state, one.attempt) for one in ledger.records()] == [("done", 1)] * EPOCHS
    assert json.dumps(evaluations(run)) == json.dumps(evaluations(undisturbed))
    assert (best(run), rows(run), table(run)) == (
        best(undisturbed), rows(undisturbed), table(undisturbed),
    )  # fmt: skip
    assert list((run / "checkpoints" / "owed").rglob("*.safetensors")) == []


@pytest.mark.filterwarnings("default::metta.errors.MettaWarning")
def test_a_run_ends_without_its_scores_when_nobody_plays_and_resume_collects_them(
    undisturbed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [one for one in SETTINGS if not one.startswith("evaluation.where")]
    words = ["evaluation.where=queue", "eval_episodes=6", "end_wait_seconds=0"]
    assert main(["train", *settings, *words, "--run", "b", "--output", str(tmp_path)]) == 0
    told, run = capfd.readouterr(), tmp_path / "b"
    assert f"collect the scores that are missing with: metta resume {run}" in told.out
    assert "the scores of epochs 1, 2, 3, 4 did not arrive within end_wait_seconds=0" in told.err
    assert evaluations(run) == []
    with working(tmp_path / "stats.db"):
        assert main(["resume", str(run), "end_wait_seconds=60"]) == 0
    assert json.dumps(evaluations(run)) == json.dumps(evaluations(undisturbed))
    assert "reached a mean return of" in capfd.readouterr().out
    assert best(run) == best(undisturbed)
