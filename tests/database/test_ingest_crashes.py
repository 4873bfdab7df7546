"""Ingesters that are killed, several at once, and databases that go away: every row arrives, once."""

import os
import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from event_logs import (
    clean_dump,
    dump,
    fork,
    kill,
    load_in_child,
    wait_for,
    write_epochs,
    write_run,
)

from benchmarks.postgres_server import PostgresServer
from metta.database import Ingester, StatsReader, log_reader
from metta.errors import DatabaseUnavailableError, MettaWarning
from metta.loggers import EventLog, StatsClient

KILLS = 12


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first" / "events.jsonl"


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_LINES", 3)


def write_long_run(path: Path, epochs: int = 60) -> None:
    """A run that also goes back in its middle."""
    with EventLog(path) as log:
        client = StatsClient(log)
        client.create_run("first")
        write_epochs(log, 0, epochs // 2)
        client.create_run("first", from_epoch=epochs // 3)
        write_epochs(log, epochs // 3, epochs, shift=0.5)
        client.end_run(log.run_id, "enough")


def load_and_tell(url: str, log: Path, tells: int) -> None:
    """Load a log, and write a byte before each batch."""
    read = log_reader.LogReader.read

    def read_and_tell(reader: log_reader.LogReader, place: log_reader.Place) -> log_reader.LogBatch:
        os.write(tells, b".")
        return read(reader, place)

    log_reader.LogReader.read = read_and_tell
    Ingester(url).ingest(log)


@pytest.mark.usefixtures("_small_batches")
def test_every_row_is_there_once_when_ingesters_are_killed_at_any_moment(
    url: str, log: Path, tmp_path: Path
) -> None:
    write_long_run(log, 120)
    with Ingester(url) as ingester:  # an empty database, so that kills hit the loading
        ingester.prepare()
    moments = random.Random(0)
    killed = 0
    for _ in range(KILLS):
        reads, tells = os.pipe()
        child = fork(lambda tells=tells: load_and_tell(url, log, tells))
        os.close(tells)
        for _ in range(moments.randint(1, 4)):
            os.read(reads, 1)
        time.sleep(moments.uniform(0.0, 0.004))
        killed += kill(child)
        os.close(reads)
    assert killed >= KILLS // 3, "the ingester was over before it could be killed"
    with Ingester(url) as ingester:
        ingester.ingest(log)
    assert dump(url) == clean_dump(tmp_path, log)


@pytest.mark.usefixtures("_small_batches")
def test_each_row_comes_once_when_processes_load_the_same_logs_at_once(
    url: str, log: Path, tmp_path: Path
) -> None:
    """They also create the schema at once, and new names of metrics."""
    other = tmp_path / "runs" / "other" / "events.jsonl"
    write_long_run(log, 30)
    write_long_run(other, 30)
    children = [load_in_child(url, log, other), load_in_child(url, other, log)]
    children.append(load_in_child(url, log, other))
    for child in children:
        wait_for(child)
    assert dump(url) == clean_dump(tmp_path, log, other)


def wait_for_rows(url: str, at_least: int) -> None:
    """Until a reader sees so many events; the database is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with StatsReader(url) as reader, reader.connect() as connection:
            found = connection.exec_driver_sql("SELECT count(*) FROM events").scalar()
        if (found or 0) >= at_least:
            return
        time.sleep(0.02)
    raise AssertionError("rows did not arrive")


class Story(threading.Thread):
    """Something that happens while the main thread watches; its error is the test's."""

    def __init__(self, tell, stop: threading.Event) -> None:
        super().__init__()
        self.tell, self.stop, self.error = tell, stop, None

    def run(self) -> None:
        try:
            self.tell()
        except BaseException as error:  # noqa: BLE001  # reason: it is raised where the test can see it
            self.error = error
        finally:
            self.stop.set()


def watch_during(story, ingester: Ingester, folder: Path) -> None:
    stop = threading.Event()
    thread = Story(lambda: story(stop), stop)
    thread.start()
    try:
        ingester.watch(folder, 0.05, stop=stop)
    finally:
        thread.join()
    if thread.error is not None:
        raise thread.error


@pytest.mark.usefixtures("_small_batches")
def test_all_rows_arrive_once_when_the_server_is_killed_in_the_middle(
    postgres_server: PostgresServer, postgres_url: str, log: Path, tmp_path: Path
) -> None:
    def story(stop: threading.Event) -> None:
        with EventLog(log) as writer:
            StatsClient(writer).create_run("first")
            write_epochs(writer, 0, 5)
            wait_for_rows(postgres_url, 10)
            write_epochs(writer, 5, 40)
            postgres_server.kill()
            write_epochs(writer, 40, 45)  # training does not notice
            time.sleep(0.3)
            postgres_server.start()
            wait_for_rows(postgres_url, writer.sequence)
            write_epochs(writer, 45, 46)

    with Ingester(postgres_url) as ingester:
        ingester.prepare()
        with pytest.warns(MettaWarning) as told:
            watch_during(story, ingester, tmp_path / "runs")
    texts = [str(warning.message) for warning in told]
    assert len(texts) == 2
    assert texts[0].endswith("it is tried again until it works")
    assert texts[1].endswith("can be reached again")
    assert all(postgres_server.password not in text for text in texts)
    assert dump(postgres_url) == clean_dump(tmp_path, log)


def test_all_rows_arrive_once_when_the_file_was_locked_for_a_while(
    log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "statistics.sqlite"
    first = write_run(log, 2, name="first")

    def story(stop: threading.Event) -> None:
        wait_for_rows(str(path), 8)
        locker = sqlite3.connect(path, isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        with EventLog(log) as writer:
            assert writer.run_id == first
            write_epochs(writer, 2, 6)
        time.sleep(0.5)
        locker.execute("ROLLBACK")
        locker.close()
        wait_for_rows(str(path), 8 + 12 + 3)

    with Ingester(str(path), wait_seconds=0.05) as ingester:
        ingester.ingest(log)
        with pytest.warns(MettaWarning) as told:
            watch_during(story, ingester, tmp_path / "runs")
    assert "database is locked" in str(told[0].message)
    assert dump(str(path)) == clean_dump(tmp_path, log)


def test_a_new_database_is_filled_when_the_file_was_removed(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "statistics.sqlite"
    write_run(log, 3)
    with Ingester(str(path)) as ingester:
        ingester.ingest(log)
        for file in tmp_path.glob("statistics.sqlite*"):
            file.unlink()
        ingester.ingest(log)
        assert dump(str(path)) == clean_dump(tmp_path, log)


def test_readers_see_whole_batches_when_a_process_writes(tmp_path: Path, log: Path) -> None:
    url = str(tmp_path / "statistics.sqlite")
    with Ingester(url) as ingester:
        ingester.prepare()
        write_run(log, 1)
        ingester.ingest(log)
    write_epochs_in = tmp_path / "runs" / "second" / "events.jsonl"
    write_long_run(write_epochs_in, 200)

    is_open, tell = os.pipe()

    def load_when_told() -> None:
        os.close(tell)  # so that nobody is waited for when the test has failed
        os.read(is_open, 1)
        load_slowly(url, write_epochs_in)

    child = fork(load_when_told)
    os.close(is_open)
    looks = 0
    # a reader never waits for the writer, but whoever opens the file first holds the others off
    with StatsReader(url, wait_seconds=0.0) as reader:
        os.close(tell)
        while not is_over(child):
            with reader.connect() as connection:
                count = "SELECT count(*) FROM"
                metrics = connection.exec_driver_sql(f"{count} metric_values").scalar()
                rows = connection.exec_driver_sql(
                    f"{count} (SELECT DISTINCT run_id, sequence FROM metric_values)"
                ).scalar()
                assert metrics == 6 * rows
            looks += 1
    assert looks > 0
    assert dump(url) == clean_dump(tmp_path, log, write_epochs_in)


def load_slowly(url: str, log: Path) -> None:
    log_reader._MAX_LINES = 5
    Ingester(url).ingest(log)


def is_over(child: int) -> bool:
    done, status = os.waitpid(child, os.WNOHANG)
    assert status == 0
    return bool(done)


@pytest.mark.parametrize("address", ["postgresql://metta:a-password@127.0.0.1:9/none"])
def test_a_typed_error_without_the_password_tells_when_the_server_is_not_there(
    address: str, log: Path
) -> None:
    write_run(log, 1)
    with (
        Ingester(address) as ingester,
        pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1") as caught,
    ):
        ingester.ingest(log)
    assert "a-password" not in str(caught.value)
