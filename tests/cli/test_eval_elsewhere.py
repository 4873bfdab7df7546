"""`metta eval --on queue|ray`: the same table, files and replays as without it."""

import threading
import time
from pathlib import Path

import pytest

from metta.agent.factory import make_policy
from metta.cli.main import main
from metta.jobs.job import JobSpec
from metta.jobs.ledger import JobLedger
from metta.store.checkpoints.files import write_checkpoint
from metta.store.policies.file import save_policy
from metta.store.policy_store import spaces_of
from metta.train.train_config import AgentConfig, TrainingConfig

EPISODES = ["--episodes", "3"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of cart and pole, and a suite."""
    for seed in (1, 2):
        run = tmp_path / "runs" / f"run-{seed}"
        TrainingConfig().to_yaml(run / "config.yaml")
        policy = make_policy(*spaces_of("CartPole-v1"), AgentConfig(hidden_size=8), seed=seed)
        about = {"epoch": seed, "agent_step": 10, "agent": {"hidden_size": 8}}
        write_checkpoint(run / "checkpoints", {}, policy, about)
    suite = "simulations: {easy/short: {env: CartPole-v1, env_kwargs: {max_episode_steps: 9}}}\n"
    (tmp_path / "mine.yaml").write_text(suite)
    return tmp_path / "runs"


def evaluated(runs: Path, folder: Path, *more: str, suites: bool = True) -> tuple[str, ...]:
    """The table, and the files; replays are where they were without `more`."""
    files = ["--csv", str(folder / "a.csv"), "--json", str(folder / "a.json")]
    files += ["--replays", str(folder / "replays")]
    words = ["eval", "run-1", "run-2:latest", *EPISODES, *files, "--runs", str(runs)]
    if suites:
        words += ["--suite", "classic", "--suite", str(runs.parent / "mine.yaml")]
    assert main([*words, *more]) == 0
    return (folder / "a.csv").read_text(), (folder / "a.json").read_text()


def pictures(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*.replay")}


@pytest.mark.parametrize(
    ("on", "suites"),
    [("queue", True), pytest.param("ray", False, marks=pytest.mark.slow)],
)
def test_everything_is_the_same_as_when_it_is_played_here(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str, suites: bool
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    expected = evaluated(runs, folder, suites=suites)
    table = capsys.readouterr().out
    shown = pictures(folder / "replays")
    assert len(shown) == (4 if suites else 2)
    (folder / "replays").rename(tmp_path / "before")
    found = evaluated(runs, folder, "--on", on, "--workers", "2", suites=suites)
    assert found == expected
    assert capsys.readouterr().out == table
    assert pictures(folder / "replays") == shown
    assert list(runs.glob("*/replays/*")) == []
    with JobLedger(str(runs / "stats.db")) as ledger:
        assert {one.state for one in ledger.records()} == {"done"}


def test_it_says_what_it_waits_for_and_a_second_try_takes_what_is_done(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "run-1", *EPISODES, "--runs", str(runs), "--on", "queue", "--wait"]
    assert main([*words, "0.1"]) == 1
    said = capsys.readouterr()
    assert "waiting for 1 of 1 evaluations" in said.err
    assert "1 of 1 evaluations are not done after --wait 0.1" in said.err
    assert main(["worker", "--runs", str(runs), "--idle", "0"]) == 0
    assert main([*words, "60"]) == 0
    with JobLedger(str(runs / "stats.db")) as ledger:
        assert [one.attempt for one in ledger.records()] == [1]


def test_its_workers_leave_the_jobs_of_others_alone(runs: Path) -> None:
    with JobLedger(str(runs / "stats.db")) as ledger:
        ledger.post([JobSpec("evaluate", "theirs", "evaluation/1", {})])
        words = ["--runs", str(runs), "--on", "queue", "--workers", "1"]
        assert main(["eval", "run-1", *EPISODES, *words]) == 0
        [theirs] = ledger.records(keys=["theirs"])
        assert (theirs.state, theirs.attempt) == ("waiting", 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--database", "nowhere"], "no SQLite file of that name exists"),
        (["--workers", "0"], "--workers 0; give 1 or more"),
        (["--wait", "-1"], "--wait -1; give a number of seconds"),
        (["--ray-address", "a:1"], "--ray-address has no effect with --on queue"),
        (["--on", "here", "--workers", "2"], "--workers has no effect with --on here"),
    ],
)
def test_bad_options_are_refused_before_anything_is_posted(
    runs: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert main(["eval", "run-1", *EPISODES, "--runs", str(runs), "--on", "queue", *more]) == 2
    assert words in capsys.readouterr().err
    assert not (runs / "stats.db").exists()


def test_policies_that_cannot_be_played_are_refused_before_anything_is_posted(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*EPISODES, "--runs", str(runs), "--on", "queue"]
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    assert main(["eval", "run-1", str(tmp_path / "bad.safetensors"), *words]) == 1
    assert "bad.safetensors" in capsys.readouterr().err
    alone = save_policy(tmp_path / "alone.safetensors", make_policy(*spaces_of("CartPole-v1")))
    more = ["--env", "CartPole-v1", "--replays", str(tmp_path / "replays")]
    assert main(["eval", "run-1", str(alone), *words, *more]) == 2
    assert "is in no run, and workers write replays into runs only" in capsys.readouterr().err
    assert not (runs / "stats.db").exists()


def test_a_failed_evaluation_is_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with JobLedger(str(runs / "stats.db")) as ledger:
            while (job := ledger.take("w", lease_seconds=60.0)) is None:
                time.sleep(0.01)
            ledger.fail(job, "no display", is_final=True)

    worker = threading.Thread(target=fail)
    worker.start()
    assert main(["eval", "run-1", "--runs", str(runs), "--on", "queue", *EPISODES]) == 1
    worker.join()
    error = capsys.readouterr().err
    assert "1 of 1 evaluations failed; the first, of 'file://" in error
    assert error.endswith("no display\n")
