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
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from metta.cli.main import main
from metta.stateful import digest_of as digest
from metta.store.checkpoints.files import list_checkpoints, read_checkpoint
from tests.ranks.kinds import KINDS, digest_of

pytestmark = pytest.mark.timeout(240)
ENDLESS = "total_timesteps=100_000_000"
STEPS = 80 * 128
"""Of a run that is disturbed after its first checkpoint, and before its end."""


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


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed run of one process ends with."""
    return trained(1, tmp_path_factory.mktemp("whole"), "whole", STEPS)


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


def under_way(
    folder: Path, run: str, *more: str, start: Callable[..., subprocess.Popen[str]] = launched
) -> tuple[subprocess.Popen[str], list[int]]:
    """A long run on two ranks that has saved a checkpoint, and its processes in the order of ranks."""
    words = train_words(folder, run, "system.rank_timeout_seconds=5", *more)
    process = start(2, *words)
    wait_for_checkpoint(folder / run, process)
    return process, ranks_of(process.pid)


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str], after: int = 0) -> None:
    begin = time.monotonic()
    while not any(one.epoch > after for one in list_checkpoints(run / "checkpoints")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() - begin < 100
        time.sleep(0.1)


def ranks_of(launcher: int) -> list[int]:
    found = started_ranks(launcher)
    return [found[0], found[1]]


def started_ranks(launcher: int) -> dict[int, int]:
    found = {}
    for child in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            environment = child.environ()
            if "RANK" in environment:
                found[int(environment["RANK"])] = child.pid
    return found


def commanded(num_ranks: int, *words: str) -> subprocess.Popen[str]:
    """A command of metta that starts ranks itself."""
    command = [sys.executable, "-m", *words, f"system.num_processes={num_ranks}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize(
    ("number", "victim", "message"),
    [
        (signal.SIGKILL, 1, "rank 1 is gone"),
        (signal.SIGSTOP, 1, "rank 1 gave no sign of life for 5 seconds"),
        pytest.param(
            signal.SIGSTOP, 0, "rank 0 gave no sign of life for 5 seconds", marks=pytest.mark.slow
        ),
    ],
)
def test_a_rank_that_is_gone_is_named_and_the_run_resumes(
    tmp_path: Path, number: signal.Signals, victim: int, message: str, expected: str
) -> None:
    process, ranks = under_way(tmp_path, "lost", f"total_timesteps={STEPS}")
    os.kill(ranks[victim], number)
    begin = time.monotonic()
    while alive(ranks) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    assert not alive(ranks)  # a stopped one is ended by the other
    code, _, err = finished(process)
    assert code != 0
    assert message in err
    assert trained(2, tmp_path, "lost", STEPS) == expected


def test_ranks_start_again_by_themselves_when_one_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: str
) -> None:
    words = f"total_timesteps={STEPS}"
    process, ranks = under_way(tmp_path, "lost", words, start=commanded)
    os.kill(ranks[1], signal.SIGKILL)
    done = list_checkpoints(tmp_path / "lost" / "checkpoints")[-1].epoch
    wait_for_checkpoint(tmp_path / "lost", process, after=done)
    os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
    code, out, err = finished(process)
    assert code == 0, err
    assert err.count("; all ranks start again from the last checkpoint\n") == 2
    assert out.count("settings, metrics and events are in") == 1
    assert not alive(ranks)
    assert snapshots(tmp_path / "lost")[-1] == expected
    assert main(["runs", "show", "lost", "--runs", str(tmp_path)]) == 0
    assert (
        "all ranks were started again 2 times, the last time because rank 0"
        in capsys.readouterr().out
    )


def test_a_rank_that_is_stopped_while_it_starts_is_ended(tmp_path: Path) -> None:
    words = train_words(tmp_path, "early", "total_timesteps=256", "max_rank_restarts=0",
                        "system.rank_timeout_seconds=2")  # fmt: skip
    process = commanded(2, *words)
    while len(found := started_ranks(process.pid)) < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    os.kill(found[1], signal.SIGSTOP)
    code, _, err = finished(process)
    assert code == 1
    assert "metta: rank 1 was ended by SIGKILL; resume the run to continue\n" in err


def test_ranks_that_end_again_and_again_end_the_run(tmp_path: Path) -> None:
    process, ranks = under_way(tmp_path, "lost", ENDLESS, "max_rank_restarts=0", start=commanded)
    os.kill(ranks[0], signal.SIGKILL)
    code, _, err = finished(process)
    assert code == 1
    assert "metta: rank 0 was ended by SIGKILL; resume the run to continue\n" in err


def test_ranks_that_fail_do_not_start_again(tmp_path: Path) -> None:
    module = tmp_path / "loose.py"
    module.write_text(LOOSE)
    words = train_words(tmp_path, "failed", ENDLESS)
    words[2] = f"{module}:Loose"
    code, _, err = finished(commanded(2, *words))
    assert code == 1
    assert "the cable came loose" in err
    assert "start again" not in err
    assert "Traceback" not in err


LOOSE = """
from gymnasium.envs.classic_control import CartPoleEnv

class Loose(CartPoleEnv):
    taken = 0

    def step(self, action):
        Loose.taken += 1
        if Loose.taken > 200:
            raise OSError("the cable came loose")
        return super().step(action)
"""


def alive(ranks: list[int]) -> list[int]:
    return [
        pid for pid in ranks
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


@pytest.mark.parametrize("start", [pytest.param(launched, marks=pytest.mark.slow), commanded])
def test_a_signal_to_the_launcher_saves_and_stops_all_ranks(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], expected: str
) -> None:
    process, ranks = under_way(tmp_path, "stopped", f"total_timesteps={STEPS}", start=start)
    before = list_checkpoints(tmp_path / "stopped" / "checkpoints")[-1].epoch
    os.kill(process.pid, signal.SIGTERM)
    code, _, _ = finished(process)
    assert code == (143 if start is commanded else 1)  # torchrun has one code for all
    assert not alive(ranks)
    saved = list_checkpoints(tmp_path / "stopped" / "checkpoints")[-1].epoch
    assert saved > before
    assert trained(2, tmp_path, "stopped", STEPS) == expected
