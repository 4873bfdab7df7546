"""The courier: what it posts and sends, and that nothing stops it but its trainer."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from benchmarks.postgres_server import PostgresServer
from metta.errors import ConfigError
from metta.jobs.courier import Courier
from metta.jobs.ledger import JobLedger
from metta.processes import python_command

Sent = list[dict[str, Any]]


def order(number: int, key: str = "") -> dict[str, Any]:
    return {"number": number, "key": key or f"key-{number}", "payload": {"n": number}}


def courier_of(ledger: JobLedger) -> tuple[Courier, Sent]:
    sent: Sent = []
    return Courier(ledger, "evaluation/run", sent.append), sent


def end_jobs(ledger: JobLedger, result: dict[str, Any] | None = None) -> None:
    while (job := ledger.take("w", lease_seconds=60.0)) is not None:
        assert ledger.finish(job, result or {"of": job.payload["n"]})


def test_each_job_is_posted_and_answered_once(ledger: JobLedger) -> None:
    courier, sent = courier_of(ledger)
    for number in (1, 2):
        courier.order(order(number))
    courier.look()
    courier.look()
    assert [one.group for one in ledger.records()] == ["evaluation/run"] * 2
    end_jobs(ledger)
    courier.look()
    courier.look()
    answers = [one for one in sent if "answer" in one]
    assert answers == [{"answer": n, "result": {"of": n}, "error": None} for n in (1, 2)]
    assert courier.is_idle


def test_a_damaged_result_is_an_error_and_the_others_are_sent(url: str, ledger: JobLedger) -> None:
    courier, sent = courier_of(ledger)
    for number in (1, 2):
        courier.order(order(number))
    courier.look()
    end_jobs(ledger)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE jobs SET result = '{{{' WHERE key = 'key-1'"))
    courier.look()
    first, second = (one for one in sent if "answer" in one)
    assert "data that metta did not write" in first["error"]
    assert (second["answer"], second["error"]) == (2, None)


def test_a_job_is_posted_again_when_its_database_was_begun_anew(ledger: JobLedger) -> None:
    courier, sent = courier_of(ledger)
    courier.order(order(1))
    courier.look()
    with ledger.transaction() as connection:
        connection.execute(text("DELETE FROM jobs"))
    courier.look()
    courier.look()
    end_jobs(ledger)
    courier.look()
    assert [one["answer"] for one in sent if "answer" in one] == [1]


def test_jobs_wait_for_a_database_that_is_away(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with JobLedger(postgres_url) as ledger:
        courier, sent = courier_of(ledger)
        courier.order(order(1))
        courier.look()
        end_jobs(ledger)
        postgres_server.kill()
        try:
            ledger.require_usable()  # it is away, which is no reason to refuse it
            courier.order(order(2))
            assert [courier.look() for _ in range(2)] == [0.1, 0.2]
            assert sent[-1]["state"]["away"]
            assert postgres_server.password not in json.dumps(sent)
        finally:
            postgres_server.start()
        courier.look()
        end_jobs(ledger)
        courier.look()
    assert [one["answer"] for one in sent if "answer" in one] == [1, 2]
    states = [one["state"]["away"] != "" for one in sent if "state" in one]
    assert states == [False, True, False]


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_a_server_that_refuses_for_good_is_refused(
    postgres_server: PostgresServer, wrong: str
) -> None:
    url = postgres_server.url("there_is_none" if wrong == "database" else "postgres")
    if wrong == "password":
        url = url.replace(postgres_server.password, "SessilePassword77")
    with JobLedger(url) as ledger, pytest.raises(ConfigError, match="give the address") as caught:
        ledger.require_usable()
    assert "SessilePassword77" not in str(caught.value)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with JobLedger(str(tmp_path / "jobs.db")) as ledger, pytest.raises(ConfigError):
        ledger.require_usable()


def test_it_ends_with_its_standard_input(tmp_path: Path) -> None:
    opened = {"open": {"database": str(tmp_path / "jobs.db"), "group": "g", "ray": None}}
    lines = "".join(json.dumps(one) + "\n" for one in (opened, {"post": order(1)}))
    command = python_command("metta.jobs.courier")
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == {"ready": f"sqlite:///{tmp_path}/jobs.db"}
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT key FROM jobs")).scalars().all() in ([], ["key-1"])
    engine.dispose()


def test_it_ends_in_order_when_it_refuses_and_its_standard_input_stays(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    opened = {"open": {"database": str(tmp_path / "jobs.db"), "group": "g", "ray": None}}
    command, pipe = python_command("metta.jobs.courier"), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(opened) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["kind"] == "ConfigError"
        assert process.wait(60) == 1
