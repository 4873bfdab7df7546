"""Workers, through `metta worker`: runs are those of `metta train`, and no job stops the others."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from metta.database.patience import patiently
from metta.errors import DatabaseUnavailableError, MettaWarning
from metta.jobs.job import JobRecord, JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.local_workers import LocalWorkers
from metta.jobs.watch import JobWatch
from metta.jobs.worker_names import has_ended, release_dead, worker_name
from metta.jobs.worker_settings import WorkerSettings
from metta.runs.summary import summarize
from tests.children import ended, start_metta
from tests.jobs.training_jobs import LONG, trained, training, weights_of
from tests.jobs.workers import working

SECONDS = 60.0
OTHER_TASK = {"curriculum.kind": "random", "curriculum.tasks": {"a": {"env": "antigravity:Env"}}}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def ledger(runs: Path) -> Iterator[JobLedger]:
    with JobLedger(str(runs / "stats.db")) as opened:
        yield opened


def record_of(ledger: JobLedger, key: str) -> JobRecord:
    [record] = ledger.records(keys=[key])
    return record


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("epoch_*"))


def trainers_below(pid: int) -> list[psutil.Process]:
    """Processes of runs: those that a fork server below a worker has started."""
    below = psutil.Process(pid).children(recursive=True)
    return [one for one in below if not one.children() and one.ppid() != pid]


def test_a_job_trains_what_metta_train_does(ledger: JobLedger, runs: Path) -> None:
    expected = trained(runs, "here", "seed=3")
    ledger.post([training("sweep/there", "seed=3")])
    assert main(["worker", "--runs", str(runs), "--idle", "0"]) == 0
    record, found = record_of(ledger, "sweep/there"), runs / "sweep" / "there"
    assert record.state == "done"
    assert weights_of(found) == weights_of(expected)
    assert record.result is not None
    assert len(record.result["episodes"]) == 3
    assert record.result["score"] == summarize(expected).score
    assert (record.result["agent_step"], record.result["epoch"]) == (128, 4)
    assert record.result["cpu_seconds"] > 0
    shown = summarize(found)
    assert (shown.status, shown.score) == ("done", record.result["score"])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"run": "../out", "settings": {}}, "not a name"),
        ({"run": "/tmp/out", "settings": {}}, "not a name"),
        ({"settings": {}}, "names no run"),
        ({"run": "a"}, "no settings"),
        ({"run": "a", "settings": {"trainer.learning_rat": 1}}, "learning_rate"),
        ({"run": "a", "settings": {"collect.address": "10.0.0.1:6379"}}, "collect.address"),
        ({"run": "a", "settings": {"evaluation.database": "x.db"}}, "evaluation.database"),
        ({"run": "a", "settings": {"evaluation.ray_address": "a:1"}}, "evaluation.ray_address"),
    ],
)
def test_a_job_that_asks_for_too_much_is_refused_for_good(
    ledger: JobLedger, runs: Path, payload: dict[str, object], reason: str
) -> None:
    ledger.post([JobSpec("train", "bad", "g", payload)])
    assert main(["worker", "--runs", str(runs), "--idle", "0"]) == 0
    record = record_of(ledger, "bad")
    assert (record.state, record.attempt) == ("failed", 1)
    assert reason in (record.error or "")
    assert [path.name for path in runs.iterdir() if not path.name.startswith("stats.db")] == []


@pytest.mark.parametrize("settings", [{"env": "antigravity:Env"}, OTHER_TASK, "suite"])
def test_a_job_whose_module_a_worker_may_not_import_is_left_to_others(
    ledger: JobLedger,
    runs: Path,
    tmp_path: Path,
    settings: dict[str, object] | str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if isinstance(settings, str):
        suite = tmp_path / "suite.yaml"
        suite.write_text("simulations: {a/b: {env: 'antigravity:Env'}}")
        settings = {"evaluation.suite": str(suite)}
    theirs = JobSpec("train", "theirs", "g", {"run": "a", "settings": settings})
    ledger.post([theirs, training("b", "eval_episodes=0")])
    assert main(["worker", "--runs", str(runs), "--idle", "0"]) == 0
    assert "left to other workers" in (said := capsys.readouterr().out)
    assert "--env antigravity:Env" in said
    record = record_of(ledger, "theirs")
    assert (record.state, record.attempt) == ("waiting", 0)
    assert record_of(ledger, "b").state == "done"
    assert not (runs / "a").exists()


def test_a_job_of_an_unknown_kind_is_left_to_others(ledger: JobLedger, runs: Path) -> None:
    ledger.post([JobSpec("paint", "odd", "g", {}), training("a", "eval_episodes=0")])
    assert main(["worker", "--runs", str(runs), "--idle", "0"]) == 0
    assert record_of(ledger, "odd").state == "waiting"
    assert record_of(ledger, "a").state == "done"


@pytest.mark.parametrize(
    "words", [["--workers", "0"], ["--idle", "-1"], ["--kinds", "paint"], ["--env", "CartPole-v1"]]
)
def test_wrong_arguments_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", *words]) == 2
    assert words[-1] in capsys.readouterr().err


def test_a_worker_that_is_stopped_gives_its_run_back_saved(
    ledger: JobLedger, runs: Path, zygote: Zygote, tmp_path: Path
) -> None:
    ledger.post([training("a", *LONG)])
    child = start_metta(zygote, ["worker", "--runs", str(runs)], tmp_path)
    until(lambda: has_checkpoint(runs / "a"))
    child.kill(signal.SIGTERM)
    assert ended(child, tmp_path).code == 0
    record = record_of(ledger, "a")
    assert (record.state, record.attempt) == ("waiting", 0)
    assert summarize(runs / "a").status == "stopped"


def test_a_run_whose_processes_are_killed_is_continued_and_ends_with_the_same_weights(
    ledger: JobLedger, runs: Path
) -> None:
    words = ["total_timesteps=9600", "checkpoint_interval=5"]
    expected = trained(runs, "here", *words)
    ledger.post([training("a", *words, max_attempts=5)])
    settings = WorkerSettings(str(runs / "stats.db"), runs=str(runs))
    with LocalWorkers(settings, count=1) as workers:
        until(lambda: has_checkpoint(runs / "a"))
        os.kill(workers.pids[0], signal.SIGKILL)  # the worker
        until(lambda: workers.check(ledger) and record_of(ledger, "a").attempt == 2)
        until(lambda: trainers_below(workers.pids[0]))
        for trainer in trainers_below(workers.pids[0]):
            trainer.kill()
        until(lambda: record_of(ledger, "a").state == "done")
    assert record_of(ledger, "a").attempt >= 2
    assert weights_of(runs / "a") == weights_of(expected)


def test_a_cancelled_run_is_stopped_and_saved(ledger: JobLedger, runs: Path) -> None:
    ledger.post([training("a", *LONG), training("b")])
    settings = WorkerSettings(str(runs / "stats.db"), runs=str(runs), lease_seconds=0.6)
    with LocalWorkers(settings, count=1):
        until(lambda: has_checkpoint(runs / "a"))
        assert ledger.cancel(keys=["a"]) == 1
        until(lambda: record_of(ledger, "b").state == "done")
    assert summarize(runs / "a").status == "stopped"
    assert record_of(ledger, "a").state == "cancelled"


def test_a_worker_that_dies_is_replaced_while_the_database_is_away(runs: Path) -> None:
    with (
        JobLedger("postgresql://nobody@127.0.0.1:1/none") as away,
        working(runs / "stats.db") as workers,
    ):
        [pid] = workers.pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: workers.check(away) and workers.pids != [pid])


def test_a_worker_refuses_a_database_that_does_not_get_better(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    assert main(["worker", "--database", str(tmp_path / "jobs.db"), "--idle", "0"]) == 2


def test_leases_of_workers_that_ended_on_this_machine_are_released(ledger: JobLedger) -> None:
    ledger.post([JobSpec("paint", key, "g", {}) for key in "abc"])
    own = worker_name(os.getpid())
    host, pid, _ = own.split(":")
    for name in (own, f"{host}:{pid}:1.00", f"elsewhere:{pid}:1.00"):
        assert ledger.take(name, lease_seconds=60) is not None
    assert [has_ended(name) for name in (own, f"{host}:{pid}:1.00", "elsewhere:1:1", "odd")] == [
        False, True, False, False,
    ]  # fmt: skip
    moved = f"{float(own.split(':')[2]) + 1.0:.2f}"
    assert not has_ended(f"{host}:{pid}:{moved}")  # the clock was set
    assert release_dead(ledger) == 1
    time.sleep(0.01)
    again = ledger.take("other", lease_seconds=60)
    assert again is not None
    assert again.key == "b"
    assert ledger.take("other", lease_seconds=60) is None


def test_a_lease_is_renewed_while_a_job_takes_longer(ledger: JobLedger) -> None:
    ledger.post([JobSpec("paint", "a", "g", {})])
    job = ledger.take("w", lease_seconds=0.3)
    assert job is not None
    renewed = threading.Event()
    renew = ledger.renew

    def noted(*arguments: object) -> bool:
        renewed.set()
        return renew(*arguments)  # type: ignore[arg-type]  # those of `renew`

    ledger.renew = noted  # type: ignore[method-assign]  # to know when
    with JobWatch(ledger, job, 0.3) as watch:
        assert renewed.wait(SECONDS)
        watch.check()
    assert ledger.finish(job, {})


def test_a_database_that_is_away_is_waited_for() -> None:
    answers = iter([DatabaseUnavailableError("gone"), DatabaseUnavailableError("gone"), 7])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.warns(MettaWarning) as warned:
        assert patiently(call) == 7
    assert [str(one.message).split(";")[0] for one in warned] == [
        "gone",
        "the database can be reached again",
    ]


def test_every_time_that_the_database_is_away_is_told() -> None:
    answers: list[DatabaseUnavailableError | int] = [DatabaseUnavailableError("gone"), 7] * 2

    def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")  # as in a command
        for _ in range(2):
            patiently(call)
    assert len(warned) == 4
