"""Posting jobs again, and waiting for them."""

import pytest

from metta.errors import DatabaseError, DatabaseUnavailableError
from metta.jobs.job import JobRecord, JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.posting import await_jobs, post_again

SPEC = JobSpec("evaluate", "key", "g", {"n": 1})


def test_a_job_is_posted_again_only_if_it_failed(ledger: JobLedger) -> None:
    assert [post_again(ledger, SPEC) for _ in range(2)] == ["key", "key"]
    job = ledger.take("w", lease_seconds=60.0)
    assert job is not None
    ledger.fail(job, "broken", is_final=True)
    assert [post_again(ledger, SPEC) for _ in range(2)] == ["key#2", "key#2"]
    ledger.cancel(keys=["key#2"])
    assert post_again(ledger, SPEC) == "key#3"
    job = ledger.take("w", lease_seconds=60.0)
    assert job is not None
    ledger.finish(job, {})
    assert post_again(ledger, SPEC) == "key#3"
    assert len(ledger.records()) == 3


def test_waiting_ends_when_all_ended_or_the_time_is_over(ledger: JobLedger) -> None:
    keys = [post_again(ledger, JobSpec("evaluate", name, "g", {})) for name in "ab"]
    looks: list[list[str]] = []

    def look(records: list[JobRecord]) -> None:
        looks.append([record.state for record in records])
        job = ledger.take("w", lease_seconds=60.0)
        if job is not None:
            ledger.finish(job, {})

    assert [one.state for one in await_jobs(ledger, keys, look=look)] == ["done", "done"]
    assert looks == [["waiting", "waiting"], ["done", "waiting"], ["done", "done"]]
    ledger.post([SPEC])
    (late,) = await_jobs(ledger, ["key"], look=lambda _: None, seconds=0.0)
    assert late.state == "waiting"


def test_a_job_that_is_damaged_is_posted_again(ledger: JobLedger) -> None:
    post_again(ledger, SPEC)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET payload = '[1'")
    assert [post_again(ledger, SPEC) for _ in range(2)] == ["key#2", "key#2"]


def test_jobs_that_are_gone_are_not_waited_for(ledger: JobLedger) -> None:
    post_again(ledger, SPEC)
    with pytest.raises(DatabaseError, match="1 of 2 jobs are gone"):
        await_jobs(ledger, ["key", "other"], look=lambda _: None)


def test_a_database_that_is_away_is_waited_for_as_long_as_jobs_are() -> None:
    with (
        JobLedger("postgresql://nobody@127.0.0.1:1/none") as ledger,
        pytest.raises(DatabaseUnavailableError),
    ):
        await_jobs(ledger, ["key"], look=lambda _: None, seconds=0.0)
