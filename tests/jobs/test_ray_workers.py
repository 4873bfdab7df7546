"""Workers on Ray: what they refuse, jobs whose workers are killed, and what is left when they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from metta.errors import ConfigError, EnvError, MissingExtraError
from metta.jobs import ray_workers
from metta.jobs.ledger import JobLedger
from metta.jobs.ray_workers import RayWorkers, require_shared
from metta.jobs.worker_settings import WorkerSettings
from tests.jobs.training_jobs import LONG, training

pytestmark = pytest.mark.timeout(300)

WORKER = "ray::metta work"
"""How the names of their processes begin; Linux has room for 15 letters."""


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.name().startswith(WORKER)]


def test_a_file_is_refused_where_other_machines_have_workers() -> None:
    with pytest.raises(ConfigError, match=r"machines, such as 10\.0\.0\.2; use PostgreSQL"):
        require_shared("jobs.db", ["10.0.0.2", "10.0.0.3"])
    require_shared("jobs.db", [])
    require_shared("postgresql://metta@host/metta", ["10.0.0.2"])


def test_refusals_name_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorkerSettings(str(tmp_path / "jobs.db"))
    with pytest.raises(ConfigError, match="0 workers; give 1 or more"):
        RayWorkers(settings, 0)
    with pytest.raises(ConfigError, match="--address='head'; give host:port"):
        RayWorkers(settings, 1, address="head", setting="--address")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[ray\]"):
        RayWorkers(settings, 1)


@pytest.mark.slow
def test_each_result_is_there_once_when_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.chdir(tmp_path)
    with JobLedger("jobs.db") as ledger:
        ledger.post(training(f"run-{index}") for index in range(4))
        with RayWorkers(WorkerSettings("jobs.db", lease_seconds=600.0), 2) as workers:
            wait_until(lambda: len(ledger.records(states=("held",))) == 2)
            workers.check(ledger)
            below = psutil.Process().children(recursive=True)
            workers_of(below)[0].kill()
            wait_until(lambda: workers.check(ledger) and len(ledger.records(states=("done",))) == 4)
            attempts = [record.attempt for record in ledger.records()]
            assert sorted(attempts) == [1, 1, 1, 2]
            wait_until(lambda: len(workers_of(psutil.Process().children(recursive=True))) == 2)

            ledger.post([training("long", *LONG)])
            wait_until((tmp_path / "runs" / "long" / "metrics.csv").is_file)
            below = psutil.Process().children(recursive=True)
        assert not workers_of(below)
        [record] = ledger.records(keys=["long"])
        assert (record.state, record.attempt) == ("waiting", 0)
        assert list((tmp_path / "runs" / "long" / "checkpoints").iterdir())


@pytest.mark.slow
def test_workers_that_cannot_begin_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setattr(ray_workers, "_MAX_QUICK_ENDS", 0)
    settings = WorkerSettings(str(tmp_path / "jobs.db"), kinds=("nothing",))
    with (
        JobLedger(settings.database) as ledger,
        RayWorkers(settings, 1) as workers,
        pytest.raises(EnvError, match="ConfigError: there are no jobs of kind 'nothing'"),
    ):
        wait_until(lambda: not workers.check(ledger))


@pytest.fixture
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a cluster that is there already, or nothing."""
    if not request.param:
        yield ""
        return
    from tests.elsewhere.test_ray_clusters import TOKEN, Head

    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    head = Head("token")
    yield head.address
    head.end()


KILLED = """
import os, signal, sys, time, psutil
from metta.jobs import ray_workers
from metta.jobs.ledger import JobLedger
from metta.jobs.ray_workers import RayWorkers
from metta.jobs.worker_settings import WorkerSettings
from tests.jobs.test_ray_workers import wait_until
from tests.jobs.training_jobs import LONG, training
address = sys.argv[1] or None
with JobLedger("jobs.db") as ledger:
    ledger.post([training("long", *LONG)])
    workers = RayWorkers(WorkerSettings("jobs.db"), 1, address=address)
    wait_until(lambda: workers.check(ledger) and os.path.isfile("runs/long/metrics.csv"))
    workers.check(ledger)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("address", [False, True], ids=["own", "joined"], indirect=True)
def test_no_worker_is_left_when_the_program_is_killed(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, address], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        below = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        workers = workers_of(psutil.Process().children(recursive=True))
        assert workers
        below += [*workers, *workers[0].children(recursive=True)]
        workers[0].suspend()  # it cannot end itself
        process.communicate("now")
    assert process.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs(below, 30)
    assert not alive


ROOT = Path(__file__).parents[2]
