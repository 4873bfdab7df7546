"""Shards that actors of a Ray on this machine collect: the same bits, and nothing that others reach."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from metta import PPOTrainer, TrainerHook
from metta.cli.main import main
from metta.cluster.ray_cluster import RayCluster
from metta.errors import EnvError
from metta.rl.remote.ray_pool import RayPool
from metta.rl.remote.remote_collector import RemoteCollector
from metta.store.checkpoints.files import list_checkpoints
from tests.elsewhere.listeners import open_ports
from tests.elsewhere.test_places import lags_of
from tests.envs.faulty_envs import FaultyEnv
from tests.ranks.kinds import digest_of, trainer_of
from tests.ranks.test_ranks_together import rows_of, snapshots

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.timeout(300)

RAY = {"collect.kind": "ray"}
AHEAD = {"collect.overlap": True}
SMALL = {"num_envs": 4, "num_shards": 2, "horizon": 16, "num_minibatches": 2, "update_epochs": 2,
         "hidden_size": 8, "verbose": False, "recipe": "none", "seed": 3}  # fmt: skip
KINDS = ["mlp", "lstm", "curriculum", "masks", "self-play", "custom loss"]
FAST = ["mlp", "curriculum", "self-play"]


def later(kind: str) -> Any:
    """Not in the fast suite: each actor that starts imports torch."""
    return pytest.param(kind, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """One for all tests: each run shares it."""
    made = RayCluster(None, 4)
    yield made
    made.close()
    assert not made.ray.is_initialized()


def require_equal(tmp_path: Path, kind: str, num_actors: int) -> None:
    expected = digest_of(kind, tmp_path / "here")
    settings = {**RAY, "collect.num_actors": num_actors}
    assert digest_of(kind, tmp_path / "ray", **settings) == expected
    assert snapshots(tmp_path / "ray") == snapshots(tmp_path / "here")
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "here")


@pytest.mark.parametrize("kind", [one if one in FAST else later(one) for one in KINDS])
def test_an_actor_gives_the_bits_of_one_process(
    tmp_path: Path, kind: str, cluster: RayCluster
) -> None:
    require_equal(tmp_path, kind, 1)


@pytest.mark.parametrize("kind", ["lstm", *(later(one) for one in KINDS if one != "lstm")])
def test_several_actors_give_the_bits_of_one_process(
    tmp_path: Path, kind: str, cluster: RayCluster
) -> None:
    require_equal(tmp_path, kind, 4)


class Killing(TrainerHook):
    """Ends actors: the first by Ray, the second by a signal."""

    def __init__(self, pool: RayPool) -> None:
        self.pool, self.pids = pool, pool.pids

    def on_rollout_start(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 1:
            self.pool._ray.kill(self.pool._actors[0])
        if trainer_state.epoch == 2:
            os.kill(self.pids[1], signal.SIGKILL)


@pytest.mark.slow  # the campaigns' short tiers kill as well
def test_actors_that_are_killed_while_they_collect_ahead_change_nothing(
    tmp_path: Path, cluster: RayCluster
) -> None:
    expected = digest_of("lstm", tmp_path / "serial", **AHEAD)
    settings = {**RAY, **AHEAD, "collect.num_actors": 2}
    with trainer_of("lstm", tmp_path / "ahead", **settings) as trainer:
        pool = pool_of(trainer)
        trainer.add_hook(Killing(pool))
        trainer.train()
        assert trainer.digest() == expected
        assert collector_of(trainer).num_restarts == 2
    assert rows_of(tmp_path / "ahead") == rows_of(tmp_path / "serial")
    assert snapshots(tmp_path / "ahead") == snapshots(tmp_path / "serial")
    assert lags_of(tmp_path / "ahead") == [0.0, 1.0, 1.0, 1.0]


def collector_of(trainer: Any) -> RemoteCollector:
    collector = trainer.components.collector
    assert isinstance(collector, RemoteCollector)
    return collector


def pool_of(trainer: Any) -> RayPool:
    pool = collector_of(trainer).pool
    assert isinstance(pool, RayPool)
    return pool


class Stopping(TrainerHook):
    """Lets an actor hang."""

    def __init__(self, pool: RayPool) -> None:
        self.pid = pool.pids[0]

    def on_rollout_start(self, trainer_state: Any) -> None:
        if trainer_state.epoch == 1:
            os.kill(self.pid, signal.SIGSTOP)


def test_an_actor_that_hangs_is_replaced_and_ended(tmp_path: Path, cluster: RayCluster) -> None:
    expected = digest_of("mlp", tmp_path / "here", 2)
    settings = {**RAY, "collect.num_actors": 1, "collect.task_timeout_seconds": 3.0}
    with trainer_of("mlp", tmp_path / "ray", 2, **settings) as trainer:
        hook = Stopping(pool_of(trainer))
        trainer.add_hook(hook)
        trainer.train()
        assert trainer.digest() == expected
        assert collector_of(trainer).num_restarts == 1
    _, alive = psutil.wait_procs(
        [psutil.Process(hook.pid)] if psutil.pid_exists(hook.pid) else [], 30
    )
    assert not alive


def test_a_run_resumes_exactly_on_ray_and_off_it(tmp_path: Path, cluster: RayCluster) -> None:
    expected = digest_of("curriculum", tmp_path / "whole", 6)
    one = {**RAY, "collect.num_actors": 1}
    digest_of("curriculum", tmp_path / "parts", 2, **one)
    digest_of("curriculum", tmp_path / "parts", 4)
    assert digest_of("curriculum", tmp_path / "parts", 6, **one) == expected


def test_an_error_of_an_environment_reaches_the_trainer(cluster: RayCluster) -> None:
    one = {**SMALL, **RAY, "collect.num_actors": 1}
    with (
        PPOTrainer(None, partial(FaultyEnv, "raise"), **one) as trainer,
        pytest.raises(EnvError, match="the simulator lost its mind"),
    ):
        trainer.collect_rollouts(16)


def test_the_program_keeps_its_signals(cluster: RayCluster) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


MAZE = """
from metta.envs.toy import CorridorEnv

class Maze(CorridorEnv):
    pass
"""
PLANTED = """
import pathlib
pathlib.Path({!r}).touch()
raise SystemExit("a file of the current folder was imported")
"""


def test_a_command_uses_an_environment_of_a_file_and_imports_nothing_else(tmp_path: Path) -> None:
    for name in ("torch", "gymnasium", "psutil", "msgpack", "cloudpickle"):
        place = tmp_path / "here" / f"{name}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(PLANTED.format(str(tmp_path / "imported")))
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "maze.py").write_text(MAZE)
    words = ["../envs/maze.py:Maze", "num_envs=4", "num_shards=2", "horizon=16", "recipe=none",
             "eval_episodes=0", "final_replay=false", "total_timesteps=100000000", "collect.kind=ray",
             "collect.num_actors=1", "--runs", "../runs", "--run", "maze"]  # fmt: skip
    process = started(tmp_path / "here", "train", *words)
    try:
        await_rows(process, tmp_path / "runs" / "maze" / "metrics.csv")
        below = psutil.Process(process.pid).children(recursive=True)
        found = list(open_ports(process.pid))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert not (tmp_path / "imported").exists()
    assert any(name.startswith("ray::RayCollector") for name, _ in found)
    assert {host.removeprefix("::ffff:") for _, host in found} == {"127.0.0.1"}
    assert list_checkpoints(tmp_path / "runs" / "maze" / "checkpoints")
    _, alive = psutil.wait_procs(below, 30)
    assert not alive


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "metta"), *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


ROOT = Path(__file__).parents[2]


def await_rows(process: subprocess.Popen[str], table: Path) -> None:
    deadline = time.monotonic() + 120
    while not table.is_file() or len(table.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


KILLED = """
import os, signal, sys, psutil
from metta import PPOTrainer
trainer = PPOTrainer(None, "CartPole-v1", num_envs=2, num_shards=1, verbose=False, collect={"kind": "ray"})
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_of_ray_is_left_when_a_trainer_is_killed() -> None:
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) > 4
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 30
    )
    assert not alive


def test_nothing_of_ray_is_imported_by_other_runs() -> None:
    code = (
        "import sys\nfrom metta import PPOTrainer\n"
        "with PPOTrainer(None, 'CartPole-v1', num_envs=2, num_shards=2, horizon=8, verbose=False, "
        "collect={'kind': 'process'}) as trainer:\n    trainer.train(total_timesteps=32)\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_says_what_is_missing_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["num_envs=2", "num_shards=2", "collect.kind=ray", "--runs", str(tmp_path)]
    assert main(["train", "CartPole-v1", *words]) != 0
    assert "metta-rl[ray]" in capsys.readouterr().err
