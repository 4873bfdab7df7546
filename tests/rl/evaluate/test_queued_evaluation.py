"""Evaluations through a queue, with a real courier and real workers: order, failures, refusals."""

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import ConfigError, DatabaseError
from metta.jobs.job import JobRecord
from metta.jobs.ledger import JobLedger
from metta.jobs.worker import work
from metta.jobs.worker_settings import WorkerSettings
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.outcome import Outcome
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.queued import QueuedEvaluation, QueuePlace
from metta.store.policies.file import save_policy
from metta.store.policy_store import spaces_of
from metta.train.train_config import AgentConfig, EvaluationConfig
from tests.jobs.workers import working

CONFIG = EvaluationConfig(eval_episodes=20)
ENV = "CartPole-v1"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "stats.db")


@pytest.fixture
def ledger(database: str) -> Iterator[JobLedger]:
    with JobLedger(database) as opened:
        yield opened


@pytest.fixture
def queued(database: str) -> Iterator[QueuedEvaluation]:
    place = QueuePlace("run", database, "start one with: metta worker")
    evaluations = QueuedEvaluation(PolicyEvaluator(ENV, CONFIG, seed=5), place)
    try:
        yield evaluations
    finally:
        evaluations.close()


def policy_of(seed: int) -> Policy:
    return make_policy(*spaces_of(ENV), AgentConfig(hidden_size=8), seed=seed)


def submit(queued: QueuedEvaluation, epoch: int, folder: Path, **about: Any) -> Policy:
    policy = policy_of(epoch)
    file = save_policy(folder / f"epoch_{epoch:06d}.safetensors", policy)
    queued.submit(EvaluationRequest(epoch, 10 * epoch, **about), policy, file)
    return policy


def posted(ledger: JobLedger, queued: QueuedEvaluation, count: int) -> list[JobRecord]:
    """The jobs, when so many are there."""
    while len(found := ledger.records()) < count:
        queued.wait(0.05)
    return found


def do_jobs(database: str, count: int) -> None:
    """Do so many of them in this process, the last ones first."""
    with JobLedger(database) as ledger:
        keys = [one.key for one in ledger.records(states=["waiting"])][::-1][:count]
        others = [one.key for one in ledger.records(states=["waiting"]) if one.key not in keys]
        held = [ledger.take("keeper", lease_seconds=60.0) for _ in others]
        work(WorkerSettings(database, idle_seconds=0.0), "worker")
        for job in held:
            assert job is not None
            ledger.give_back(job)


def epochs_of(outcomes: list[Outcome]) -> list[int]:
    return [one.moment.epoch for one in outcomes]


def test_scores_are_those_of_a_local_evaluation(
    queued: QueuedEvaluation, database: str, tmp_path: Path
) -> None:
    queued.start()
    first = submit(queued, 1, tmp_path)
    second = policy_of(2)
    queued.submit(EvaluationRequest(2, 20), second)  # its file could not be kept
    for parameter in second.parameters():
        parameter.data.zero_()
    with working(database):
        outcomes = queued.collect(wait=True)
    local = PolicyEvaluator(ENV, CONFIG, seed=5)
    expected = [local.play(policy).to_dict() for policy in (first, policy_of(2))]
    assert epochs_of(outcomes) == [1, 2]
    assert [one.results and one.results.to_dict() for one in outcomes] == expected
    assert expected[0] != expected[1]
    assert (queued.unfinished, queued.epochs, queued.trouble) == (set(), set(), "")


def test_later_epochs_wait_for_earlier_ones(
    queued: QueuedEvaluation, ledger: JobLedger, database: str, tmp_path: Path
) -> None:
    for epoch in (1, 2, 3):
        submit(queued, epoch, tmp_path)
    posted(ledger, queued, 3)
    do_jobs(database, 2)  # of epochs 3 and 2
    while len(queued._answers) < 2:
        queued.wait(0.05)
    assert queued.collect() == []
    assert queued.unfinished == {1, 2, 3}
    do_jobs(database, 1)
    assert epochs_of(queued.collect(wait=True)) == [1, 2, 3]


def test_everything_is_done_once_when_the_courier_is_killed(
    queued: QueuedEvaluation, ledger: JobLedger, database: str, tmp_path: Path
) -> None:
    queued.start()
    submit(queued, 1, tmp_path)
    posted(ledger, queued, 1)
    assert queued.pid is not None
    os.kill(queued.pid, signal.SIGKILL)
    submit(queued, 2, tmp_path)
    with working(database):
        assert epochs_of(queued.collect(wait=True)) == [1, 2]
    assert [one.attempt for one in ledger.records()] == [1, 1]


def test_training_goes_on_when_the_courier_cannot_be_started(
    queued: QueuedEvaluation, database: str, tmp_path: Path
) -> None:
    submit(queued, 1, tmp_path)
    assert queued.pid is not None
    os.kill(queued.pid, signal.SIGKILL)
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    while queued.pid is not None:
        queued.wait(0.05)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        while "cannot be started" not in queued.trouble:
            queued.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    with working(database):
        assert epochs_of(queued.collect(wait=True)) == [1]


def test_a_result_that_is_there_already_is_taken_by_a_resumed_run(
    queued: QueuedEvaluation, ledger: JobLedger, database: str, tmp_path: Path
) -> None:
    submit(queued, 1, tmp_path)
    posted(ledger, queued, 1)
    queued.close()  # as a run that is killed
    do_jobs(database, 1)
    submit(queued, 1, tmp_path)
    (outcome,) = queued.collect(wait=True)
    assert outcome.results is not None
    assert len(ledger.records()) == 1


def test_the_outcome_has_the_error_when_a_job_failed_and_a_resumed_run_tries_again(
    queued: QueuedEvaluation, ledger: JobLedger, database: str, tmp_path: Path
) -> None:
    submit(queued, 1, tmp_path)
    posted(ledger, queued, 1)
    job = ledger.take("broken", lease_seconds=60.0)
    assert job is not None
    ledger.fail(job, "no display", is_final=True)
    (outcome,) = queued.collect(wait=True)
    assert outcome.results is None
    with pytest.raises(Exception, match="no display"):
        raise outcome.error or AssertionError
    queued.close()
    submit(queued, 1, tmp_path)
    assert [one.state for one in posted(ledger, queued, 2)] == ["failed", "waiting"]


def test_a_result_that_metta_did_not_write_is_an_error(
    queued: QueuedEvaluation, ledger: JobLedger, tmp_path: Path
) -> None:
    numbers = {"returns": [1.0], "lengths": [1], "num_missing": 0}
    found: list[dict[str, Any]] = [
        {},
        {"results": None},
        {"results": {"episodes": {"training/CartPole-v1": {}}, "left_out": {}}},
        {"results": {"episodes": {"x/y": numbers}, "left_out": {}}},
    ]
    for epoch, result in enumerate(found, 1):
        submit(queued, epoch, tmp_path)
        posted(ledger, queued, epoch)
        job = ledger.take("liar", lease_seconds=60.0)
        assert job is not None
        ledger.finish(job, result)
    outcomes = queued.collect(wait=True)
    assert len(outcomes) == len(found)
    for outcome in outcomes:
        assert "that metta did not write" in str(outcome.error)


def test_replays_are_named_in_the_folder_where_they_were_asked_for_and_nowhere_else(
    queued: QueuedEvaluation, ledger: JobLedger, tmp_path: Path
) -> None:
    folder = tmp_path / "replays"
    submit(queued, 1, tmp_path, is_scored=False, replay_dir=str(folder))
    posted(ledger, queued, 1)
    job = ledger.take("liar", lease_seconds=60.0)
    assert job is not None
    told = {"files": {"a/b": "/etc/passwd"}, "failures": {}}
    ledger.finish(job, {"results": None, "replays": told})
    (outcome,) = queued.collect(wait=True)
    assert outcome.recorded.files == {"a/b": str(folder / "passwd")}


def test_it_says_how_to_start_a_worker_when_none_takes_the_jobs(
    queued: QueuedEvaluation, tmp_path: Path
) -> None:
    submit(queued, 1, tmp_path)
    while not queued.trouble:
        queued.wait(0.2)
    assert queued.trouble == "no worker has taken them; start one with: metta worker"


def test_a_database_that_is_away_is_not_an_error(tmp_path: Path) -> None:
    away = "postgresql://metta@127.0.0.1:1/metta"
    queued = QueuedEvaluation(PolicyEvaluator(ENV, CONFIG), QueuePlace("run", away, "..."))
    try:
        queued.start()
        submit(queued, 1, tmp_path)
        while not queued.trouble:
            queued.wait(0.2)
        assert "jobs are posted when it is back" in queued.trouble
        assert queued.collect() == []
    finally:
        queued.close()


def test_wrong_addresses_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.db"
    other.write_text("this is no database, and it is long enough to be looked at" * 20)
    monkeypatch.setenv("QUEUE_ADDRESS", "mysql://metta:SessilePassword77@host/x")
    cases: list[tuple[str, type[Exception], str]] = [
        ("nonsense", ConfigError, "is not a URL, and no SQLite file"),
        ("env:QUEUE_ADDRESS", ConfigError, "kind 'mysql' is not supported"),
        ("env:NOT_SET_ANYWHERE", ConfigError, "NOT_SET_ANYWHERE is not set"),
        (str(other), DatabaseError, "not a database"),
    ]
    for address, kind, words in cases:
        queued = QueuedEvaluation(PolicyEvaluator(ENV, CONFIG), QueuePlace("run", address, "..."))
        with pytest.raises(kind, match=words) as caught:
            queued.start()
        assert "SessilePassword77" not in str(caught.value)
        assert queued.pid is None
