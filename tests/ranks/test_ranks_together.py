"""Processes started by torchrun: equal bits for any number of them, and a clear end where one is gone."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from metta.stateful import digest_of as digest
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint
from tests.ranks.kinds import KINDS, digest_of

pytestmark = pytest.mark.timeout(240)


def launched(num_ranks: int, *words: str) -> subprocess.Popen[str]:
    """A module under torchrun, in a process group of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(num_ranks), "-m", "--", *words]  # fmt: skip
    options = {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | options, start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def digests(num_ranks: int, folder: Path, *kinds: str) -> dict[str, str]:
    code, out, err = finished(launched(num_ranks, "tests.ranks.kinds", str(folder), *kinds))
    assert code == 0, err
    found: dict[str, str] = {}
    for line in out.splitlines():
        found |= json.loads(line)
    return found


def rows_of(folder: Path) -> list[str]:
    """Rows of the table of metrics, without what was measured by a clock."""
    with (folder / "metrics.csv").open() as file:
        return [
            str({k: v for k, v in row.items() if not re.match(r"timing|monitor|overview/sps|metric/t", k)})
            for row in csv.DictReader(file)
        ]  # fmt: skip


def snapshots(folder: Path) -> list[str]:
    """Digests of the checkpoints, without what names files and machines."""
    return [
        digest({k: v for k, v in read_checkpoint(one.path).snapshot.items()
                if k not in ("conditions", "policy_tracker")})
        for one in list_checkpoints(folder / "checkpoints")
    ]  # fmt: skip


def test_one_two_and_four_ranks_give_the_same_bits(tmp_path: Path) -> None:
    expected = {kind: digest_of(kind, tmp_path / "1" / kind) for kind in KINDS}
    for num_ranks in (2, 4):
        folder = tmp_path / str(num_ranks)
        assert digests(num_ranks, folder, *KINDS) == expected
        for kind in KINDS:
            assert snapshots(folder / kind) == snapshots(tmp_path / "1" / kind)
            assert rows_of(folder / kind) == rows_of(tmp_path / "1" / kind)
    assert len(set(expected.values())) == len(KINDS)


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        ("other seeds", ["rank 1 begins with other weights than rank 0; start every rank with"]),
        ("an error", ["the cable came loose", "rank 1 failed: EnvError"]),
    ],
)
def test_all_ranks_end_and_say_why(tmp_path: Path, kind: str, messages: list[str]) -> None:
    code, _, err = finished(launched(2, "tests.ranks.kinds", str(tmp_path), kind))
    assert code != 0
    for message in messages:
        assert message in err


def train_words(folder: Path, run: str, *words: str) -> list[str]:
    return ["metta", "train", "CartPole-v1", "num_shards=2", "num_envs=4", "horizon=32", "core=lstm",
            "hidden_size=8", "eval_episodes=0", "final_replay=false", "checkpoint_interval=2",
            "verbose=false", "system.rank_timeout_seconds=60", "--runs", str(folder), "--run", run,
            *words]  # fmt: skip


def trained(num_ranks: int, folder: Path, run: str, steps: int) -> str:
    """What a command trained, on so many ranks; one is started without torchrun."""
    words = train_words(folder, run, f"total_timesteps={steps}")
    if num_ranks == 1:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    else:
        code, out, err = finished(launched(num_ranks, *words))
        assert code == 0, err
        assert out.count("settings, metrics and events are in") == 1  # one rank talks
    return snapshots(folder / run)[-1]


def test_a_run_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    expected = trained(1, tmp_path, "whole", 768)
    trained(2, tmp_path, "parts", 256)
    shutil.copytree(tmp_path / "parts", tmp_path / "others")
    assert trained(1, tmp_path, "parts", 768) == expected
    assert trained(2, tmp_path, "others", 768) == expected


def test_a_setting_starts_the_ranks_and_imports_nothing_from_where_it_is_called(
    tmp_path: Path,
) -> None:
    expected = trained(1, tmp_path, "whole", 768)
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("json", "torch", "metta", "sitecustomize"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    metta = str(Path(sys.executable).with_name("metta"))
    _, *words = train_words(tmp_path, "own", "total_timesteps=256")
    resume = ["resume", "own", "total_timesteps=768", "--runs", str(tmp_path)]
    for call in ([*words, "system.num_processes=2"], resume):  # the run remembers the setting
        done = subprocess.run(
            [metta, *call], cwd=planted, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("settings, metrics and events are in") == 1
    assert snapshots(tmp_path / "own")[-1] == expected
    assert "num_processes: 2" in (tmp_path / "own" / "config.yaml").read_text()
    assert not (tmp_path / "canary").exists()


def under_way(folder: Path, run: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A long run on two ranks that has saved a checkpoint, and its processes in the order of ranks."""
    words = train_words(folder, run, "total_timesteps=100_000_000", "system.rank_timeout_seconds=5")
    process = launched(2, *words)
    begin = time.monotonic()
    while not list_checkpoints(folder / run / "checkpoints"):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() - begin < 100
        time.sleep(0.1)
    return process, ranks_of(process.pid)


def ranks_of(launcher: int) -> list[int]:
    found = {}
    for child in psutil.Process(launcher).children(recursive=True):
        environment = child.environ()
        if "RANK" in environment:
            found[int(environment["RANK"])] = child.pid
    return [found[0], found[1]]


@pytest.mark.parametrize(
    ("number", "victim", "message"),
    [
        (signal.SIGKILL, 1, "rank 1 is gone"),
        (signal.SIGSTOP, 1, "rank 1 gave no sign of life for 5 seconds"),
        (signal.SIGSTOP, 0, "rank 0 gave no sign of life for 5 seconds"),
    ],
)
def test_a_rank_that_is_gone_is_named_and_the_run_resumes(
    tmp_path: Path, number: signal.Signals, victim: int, message: str
) -> None:
    process, ranks = under_way(tmp_path, "lost")
    os.kill(ranks[victim], number)
    begin = time.monotonic()
    # torchrun gives a stopped process half a minute to end by itself
    while ranks[1 - victim] in alive(ranks) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    assert ranks[1 - victim] not in alive(ranks)
    with contextlib.suppress(ProcessLookupError):
        os.kill(ranks[victim], signal.SIGKILL)
    code, _, err = finished(process)
    assert code != 0
    assert message in err
    epochs = list_checkpoints(tmp_path / "lost" / "checkpoints")[-1].epoch
    steps = (epochs + 2) * 128
    assert trained(2, tmp_path, "lost", steps) == trained(1, tmp_path, "whole", steps)


def alive(ranks: list[int]) -> list[int]:
    return [
        pid for pid in ranks
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


def test_a_signal_to_the_launcher_saves_and_stops_all_ranks(tmp_path: Path) -> None:
    process, ranks = under_way(tmp_path, "stopped")
    before = list_checkpoints(tmp_path / "stopped" / "checkpoints")[-1].epoch
    os.kill(process.pid, signal.SIGTERM)
    finished(process)
    assert not alive(ranks)
    saved = list_checkpoints(tmp_path / "stopped" / "checkpoints")[-1].epoch
    assert saved > before
    steps = (saved + 2) * 128
    assert trained(2, tmp_path, "stopped", steps) == trained(1, tmp_path, "whole", steps)
