"""What a ledger promises, in SQLite and PostgreSQL: a job is done, and its result taken, once."""

import math
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metta.cli.main import main
from metta.database import StatsReader
from metta.errors import ConfigError, DatabaseError
from metta.jobs.job import Job, JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.tables import JOBS
from metta.jobs.worker_names import release_dead, worker_name

LONG = 60.0


def spec(key: str = "a", **given: Any) -> JobSpec:
    return JobSpec(**{"kind": "play", "group": "g", "payload": {"n": 1}, "key": key, **given})


def taken(ledger: JobLedger, worker: str = "w", seconds: float = LONG, **wanted: Any) -> Job:
    job = ledger.take(worker, lease_seconds=seconds, **wanted)
    assert job is not None
    return job


def state_of(ledger: JobLedger, key: str = "a") -> str:
    [record] = ledger.records(keys=[key])
    return record.state


def test_a_job_from_posting_to_its_result(ledger: JobLedger) -> None:
    assert ledger.post([spec(payload={"uri": "file:///p", "deep": [1, {"x": None}]})]) == 1
    [waiting] = ledger.records()
    assert (waiting.state, waiting.attempt, waiting.worker) == ("waiting", 0, None)
    job = taken(ledger, "first")
    assert (job.key, job.kind, job.group, job.attempt) == ("a", "play", "g", 1)
    assert job.payload == {"uri": "file:///p", "deep": [1, {"x": None}]}
    assert state_of(ledger) == "held"
    assert ledger.renew(job, LONG)
    assert ledger.finish(job, {"score": 0.1})
    [done] = ledger.records(group="g", states=["done"])
    assert (done.result, done.error, done.worker) == ({"score": 0.1}, None, "first")
    assert done.posted <= (done.started or 0) <= (done.ended or 0)
    assert abs(done.posted - time.time()) < 60
    assert ledger.take("w", lease_seconds=LONG) is None


def test_numbers_come_back_to_the_bit(ledger: JobLedger) -> None:
    numbers = [0.1, 1 / 3, 5e-324, math.inf, -math.inf, 1e308, 2**53 + 1]
    ledger.post([spec()])
    ledger.finish(taken(ledger), {"n": numbers, "nan": math.nan})
    [record] = ledger.records()
    assert record.result is not None
    assert record.result["n"] == numbers
    assert math.isnan(record.result["nan"])


def test_posting_a_key_again_changes_nothing(ledger: JobLedger) -> None:
    ledger.post([spec("a"), spec("b")])
    ledger.finish(taken(ledger), {"score": 1})
    assert ledger.post([spec("a", payload={"other": 2}), spec("b"), spec("c")]) == 1
    assert [record.state for record in ledger.records()] == ["done", "waiting", "waiting"]


def test_jobs_are_taken_by_priority_then_in_order(ledger: JobLedger) -> None:
    ledger.post([spec("a"), spec("b", priority=1), spec("c"), spec("d", priority=1)])
    assert [taken(ledger).key for _ in range(4)] == ["b", "d", "a", "c"]


def test_a_worker_takes_only_kinds_and_groups_that_it_serves(ledger: JobLedger) -> None:
    ledger.post([spec("a"), spec("b", kind="train"), spec("c", kind="train", group="h")])
    assert taken(ledger, groups=["h"]).key == "c"
    assert taken(ledger, kinds=["train"]).key == "b"
    assert ledger.take("w", lease_seconds=LONG, kinds=["train"]) is None
    assert ledger.take("w", lease_seconds=LONG, groups=["h"]) is None


@pytest.mark.parametrize("other", ["quick", "slow"])
def test_after_its_lease_a_job_is_another_attempts(ledger: JobLedger, other: str) -> None:
    ledger.post([spec()])
    late = taken(ledger, "slow", seconds=0.0)
    time.sleep(0.01)
    again = taken(ledger, other)
    assert again.attempt == 2
    assert not ledger.renew(late, LONG)
    assert not ledger.finish(late, {"by": "slow"})
    assert not ledger.fail(late, "slow")
    assert not ledger.give_back(late)
    assert ledger.finish(again, {"by": "quick"})
    assert not ledger.finish(again, {"by": "quick, once more"})
    [record] = ledger.records()
    assert record.result == {"by": "quick"}


def test_a_late_result_counts_if_nobody_else_took_the_job(ledger: JobLedger) -> None:
    ledger.post([spec()])
    late = taken(ledger, seconds=0.0)
    time.sleep(0.01)
    assert ledger.finish(late, {"by": "slow"})
    assert state_of(ledger) == "done"


def test_a_job_whose_workers_keep_dying_fails(ledger: JobLedger) -> None:
    ledger.post([spec(max_attempts=2), spec("b")])
    for _ in range(2):
        assert taken(ledger, seconds=0.0).key == "a"
        time.sleep(0.01)
    assert taken(ledger).key == "b"
    [record] = ledger.records(keys=["a"])
    assert record.state == "failed"
    assert "2 times" in (record.error or "")


def test_a_failed_job_is_tried_again_until_its_attempts_are_used(ledger: JobLedger) -> None:
    ledger.post([spec(max_attempts=2)])
    assert ledger.fail(taken(ledger), "first")
    assert state_of(ledger) == "waiting"
    assert ledger.fail(taken(ledger), "second")
    [record] = ledger.records()
    assert (record.state, record.error, record.attempt) == ("failed", "second", 2)


def test_a_final_failure_is_not_tried_again(ledger: JobLedger) -> None:
    ledger.post([spec()])
    assert ledger.fail(taken(ledger), "wrong", is_final=True)
    assert state_of(ledger) == "failed"
    assert ledger.take("w", lease_seconds=LONG) is None


def test_a_job_that_is_given_back_has_used_no_attempt(ledger: JobLedger) -> None:
    ledger.post([spec(max_attempts=1)])
    assert ledger.give_back(taken(ledger))
    again = taken(ledger, "other")
    assert again.attempt == 1
    assert ledger.finish(again, {})


def test_who_gave_a_job_back_cannot_finish_it(ledger: JobLedger) -> None:
    ledger.post([spec()])
    early = taken(ledger, "first")
    ledger.give_back(early)
    again = taken(ledger, "other")
    assert early.attempt == again.attempt
    assert not ledger.finish(early, {})
    assert ledger.finish(again, {})


def test_leases_of_a_dead_worker_end_at_once(ledger: JobLedger) -> None:
    ledger.post([spec("a"), spec("b")])
    taken(ledger, "dead")
    taken(ledger, "alive")
    assert ledger.take("w", lease_seconds=LONG) is None
    assert ledger.abandon("dead") == 1
    time.sleep(0.01)
    assert taken(ledger).key == "a"
    assert ledger.take("w", lease_seconds=LONG) is None


def test_cancelled_jobs_are_not_done_and_their_results_not_taken(ledger: JobLedger) -> None:
    ledger.post([spec("a"), spec("b"), spec("c", group="h"), spec("d")])
    ledger.finish(done := taken(ledger), {})
    held = taken(ledger)
    assert (done.key, held.key) == ("a", "b")
    assert ledger.cancel(group="g") == 2  # b and d: what is done stays so
    assert not ledger.renew(held, LONG)
    assert not ledger.finish(held, {})
    states = {record.key: record.state for record in ledger.records()}
    assert states == {"a": "done", "b": "cancelled", "c": "waiting", "d": "cancelled"}
    assert ledger.cancel(keys=[]) == 0
    assert ledger.records(keys=[]) == []
    assert ledger.cancel(keys=["c", "unknown"]) == 1


def test_posting_stands_or_falls_with_its_transaction(ledger: JobLedger) -> None:
    def post_and_fail() -> None:
        with ledger.transaction() as connection:
            ledger.post([spec()], connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        post_and_fail()
    assert ledger.records() == []
    with ledger.transaction() as connection:
        ledger.post([spec()], connection)
    assert state_of(ledger) == "waiting"


def test_many_takers_at_once_get_each_job_once(ledger: JobLedger, url: str) -> None:
    ledger.post([spec(str(number)) for number in range(40)])
    found: list[str] = []

    def take_all(name: str) -> None:
        with JobLedger(url) as own:
            while (job := own.take(name, lease_seconds=LONG)) is not None:
                found.append(job.key)
                assert own.finish(job, {"by": name})

    threads = [threading.Thread(target=take_all, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=int) == [str(number) for number in range(40)]
    assert all(record.state == "done" for record in ledger.records())


def test_a_payload_that_metta_did_not_write_stops_no_other_job(ledger: JobLedger) -> None:
    ledger.post([spec("broken"), spec("sound")])
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET payload = '[1' WHERE key = 'broken'")
    assert taken(ledger).key == "sound"
    with ledger.transaction() as connection:
        rows = connection.exec_driver_sql("SELECT key, state, error FROM jobs ORDER BY id").all()
    assert rows[0][:2] == ("broken", "failed")
    assert "did not write" in rows[0][2]


def test_a_damaged_job_hides_no_worker_that_has_ended(ledger: JobLedger) -> None:
    ledger.post([spec("broken"), spec("sound")])
    host = worker_name(os.getpid()).partition(":")[0]
    names = [f"{host}:{os.getpid()}:1.00", f"{host}:²:1.00"]
    for name in names:
        taken(ledger, name)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET payload = '[1' WHERE key = 'broken'")
    assert ledger.holders() == set(names)
    assert release_dead(ledger) == 1


def test_any_text_can_be_an_error(ledger: JobLedger) -> None:
    ledger.post([spec()])
    assert ledger.fail(taken(ledger), "a\0b\ud800c", is_final=True)
    [record] = ledger.records()
    assert record.error == "ab?c"


def test_jobs_live_beside_statistics(ledger: JobLedger, url: str) -> None:
    from metta.database import Ingester

    ledger.post([spec()])
    with pytest.raises(DatabaseError, match="holds no statistics"):
        StatsReader(url)
    with Ingester(url) as ingester:
        ingester.prepare()
    with StatsReader(url) as reader:
        assert reader.runs() == []
    assert state_of(ledger) == "waiting"


def test_jobs_can_be_queried_where_there_are_no_statistics(
    ledger: JobLedger, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.post([spec("first"), spec("second")])
    query = "SELECT key, state FROM jobs ORDER BY id"
    assert main(["stats", "query", query, "--database", url, "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        '{"key": "first", "state": "waiting"}',
        '{"key": "second", "state": "waiting"}',
    ]
    assert main(["stats", "tables", "--database", url, "--json"]) == 0
    assert '{"name": "jobs", "kind": "table", "rows": 2}' in capsys.readouterr().out


@pytest.mark.parametrize(
    "place", ["file/jobs.db", "file/more/jobs.db", "folder.db", "/proc/x/y.db"]
)
def test_a_place_where_no_database_can_be_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.db").mkdir()
    path = str(tmp_path / place)
    with JobLedger(path) as ledger, pytest.raises(ConfigError, match=re.escape(path)):
        ledger.records()


def test_another_version_of_the_table_is_refused(ledger: JobLedger, url: str) -> None:
    ledger.post([spec()])
    with ledger.transaction() as connection:
        connection.execute(JOBS.version_table.update().values(version=99))
    with JobLedger(url) as other, pytest.raises(DatabaseError, match=r"version 99.*--database"):
        other.records()


def test_a_secret_is_refused_and_a_reference_to_one_is_taken(ledger: JobLedger) -> None:
    with pytest.raises(ConfigError, match="env:NAME") as refused:
        ledger.post([spec(payload={"settings": {"env_kwargs": {"password": "hunter2"}}})])
    assert "hunter2" not in str(refused.value)
    assert ledger.post([spec(payload={"env_kwargs": {"password": "env:SECRET"}})]) == 1


def test_no_attempts_are_refused(ledger: JobLedger) -> None:
    with pytest.raises(ConfigError, match="max_attempts=0"):
        ledger.post([spec(max_attempts=0)])


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "finish", "fail", "give_back", "abandon", "cancel"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(steps=steps)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_in_any_order_of_calls_one_result_per_job_is_taken(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with JobLedger(str(tmp_path_factory.mktemp("jobs") / "jobs.db")) as ledger:
        ledger.post([spec("a"), spec("b")])
        held: list[Job] = []
        results: dict[str, int] = {}
        for number, (action, which) in enumerate(steps):
            job = held[which % len(held)] if held else None
            if action == "take":
                found = ledger.take(f"w{which}", lease_seconds=LONG)
                held += [] if found is None else [found]
            elif action == "abandon":
                ledger.abandon(f"w{which}")
            elif action == "cancel" and which == 3:
                ledger.cancel(keys=["b"])
            elif job is not None and action == "finish" and ledger.finish(job, {"n": number}):
                assert job.key not in results
                results[job.key] = number
            elif job is not None and action in ("fail", "give_back"):
                getattr(ledger, action)(job, *(["x"] if action == "fail" else []))
        for record in ledger.records():
            assert (record.state == "done") == (record.key in results)
            assert record.result == ({"n": results[record.key]} if record.key in results else None)
