"""Where runs of several processes listen: nowhere, or on loopback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.elsewhere.listeners import open_ports

pytestmark = pytest.mark.timeout(240)
SMALL = ["CartPole-v1", "num_envs=4", "num_shards=2", "horizon=16", "recipe=none", "eval_episodes=0",
         "final_replay=false", "total_timesteps=100000000", "rank_timeout_seconds=60"]  # fmt: skip


def listeners_of(folder: Path, *words: str) -> tuple[list[str], int]:
    """Hosts at which the processes of a run listen while it trains, and how many processes it has."""
    command = [
        sys.executable,
        "-m",
        "metta",
        "train",
        *SMALL,
        *words,
        "--runs",
        str(folder),
        "--run",
        "one",
    ]
    variables = {name: value for name, value in os.environ.items() if "GLOO" not in name}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            table, deadline = folder / "one" / "metrics.csv", time.monotonic() + 120
            while not table.is_file() or len(table.read_text().splitlines()) < 3:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            hosts = [host.removeprefix("::ffff:") for _, host in open_ports(process.pid)]
            below = psutil.Process(process.pid).children(recursive=True)
        finally:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.send_signal(signal.SIGKILL)
    psutil.wait_procs(below, 20)
    return hosts, len(below)


def test_ranks_of_this_machine_listen_on_loopback_only(tmp_path: Path) -> None:
    hosts, count = listeners_of(tmp_path, "num_processes=2")
    assert count >= 2
    assert len(hosts) >= 3  # what keeps them together, and each of them
    assert set(hosts) == {"127.0.0.1"}


def test_collecting_processes_do_not_listen(tmp_path: Path) -> None:
    hosts, count = listeners_of(tmp_path, "collect.kind=process")
    assert count >= 2
    assert hosts == []
