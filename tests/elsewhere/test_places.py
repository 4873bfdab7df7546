"""Shards that other processes collect: the same bits, wherever, whenever and however often that happens."""

import ast
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from metta import PPOTrainer, TrainerHook, TrainingConfig
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError, RolloutError
from metta.rl.remote.process_pool import ProcessPool
from metta.rl.remote.remote_collector import RemoteCollector
from tests.envs.faulty_envs import FaultyEnv
from tests.ranks.kinds import KINDS, digest_of, trainer_of
from tests.ranks.test_ranks_together import digests, rows_of, snapshots

PROCESSES = {"collect.kind": "process"}
AHEAD = {"collect.overlap": True}
SMALL = {"num_envs": 4, "num_shards": 2, "horizon": 16, "num_minibatches": 2, "update_epochs": 2,
         "hidden_size": 8, "verbose": False, "recipe": "none", "seed": 3}  # fmt: skip


def small(env: Any = "CartPole-v1", **settings: Any) -> PPOTrainer:
    return PPOTrainer(None, env, **{**SMALL, **PROCESSES, **settings})


def lags_of(folder: Path) -> list[float]:
    return [float(ast.literal_eval(row)["experience/policy_lag"]) for row in rows_of(folder)]


@pytest.mark.parametrize("kind", KINDS)
def test_processes_give_the_bits_of_one_process(tmp_path: Path, kind: str) -> None:
    expected = digest_of(kind, tmp_path / "here")
    for actors in (1, 4):
        folder, settings = tmp_path / str(actors), {**PROCESSES, "collect.num_actors": actors}
        assert digest_of(kind, folder, **settings) == expected
        assert snapshots(folder) == snapshots(tmp_path / "here")
        assert rows_of(folder) == rows_of(tmp_path / "here")


@pytest.mark.parametrize("kind", KINDS)
def test_collecting_ahead_gives_the_bits_of_its_serial_emulation(tmp_path: Path, kind: str) -> None:
    expected = digest_of(kind, tmp_path / "serial", **AHEAD)
    assert digest_of(kind, tmp_path / "overlap", **PROCESSES, **AHEAD) == expected
    assert rows_of(tmp_path / "overlap") == rows_of(tmp_path / "serial")
    assert snapshots(tmp_path / "overlap") == snapshots(tmp_path / "serial")
    assert lags_of(tmp_path / "overlap") == [0.0, 1.0, 1.0, 1.0]
    assert expected != digest_of(kind, tmp_path / "here")


def test_ranks_with_processes_of_their_own_give_the_same_bits(tmp_path: Path) -> None:
    names = ["mlp in processes", "lstm ahead"]
    expected = {name: digest_of(name, tmp_path / "1" / name) for name in names}
    assert digests(2, tmp_path / "2", *names) == expected
    assert expected["mlp in processes"] == digest_of("mlp", tmp_path / "here")


@pytest.mark.parametrize("kind", ["lstm", "self-play", "curriculum"])
def test_a_run_resumes_exactly_wherever_its_shards_are_collected(tmp_path: Path, kind: str) -> None:
    expected = digest_of(kind, tmp_path / "whole", 6)
    digest_of(kind, tmp_path / "parts", 2, **PROCESSES)
    digest_of(kind, tmp_path / "parts", 4)
    assert digest_of(kind, tmp_path / "parts", 6, **PROCESSES) == expected


@pytest.mark.parametrize("kind", ["lstm", "self-play", "curriculum"])
def test_a_run_that_collects_ahead_resumes_exactly(tmp_path: Path, kind: str) -> None:
    expected = digest_of(kind, tmp_path / "whole", 6, **PROCESSES, **AHEAD)
    digest_of(kind, tmp_path / "parts", 3, **PROCESSES, **AHEAD)
    assert digest_of(kind, tmp_path / "parts", 6, **AHEAD) == expected
    assert lags_of(tmp_path / "parts") == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


class Signalling(TrainerHook):
    """Sends a signal to a collecting process at the start or the end of a rollout."""

    def __init__(self, pool: Any, number: int, event: str) -> None:
        self.pool, self.number = pool, number
        setattr(self, event, self.send)

    def send(self, trainer_state: Any) -> None:
        os.kill(self.pool.pids[trainer_state.epoch % 2], self.number)


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["in turn", "ahead"])
@pytest.mark.parametrize("event", ["on_rollout_start", "on_rollout_end"])
def test_a_killed_process_changes_nothing(
    tmp_path: Path, ahead: dict[str, Any], event: str
) -> None:
    expected = digest_of("lstm", tmp_path / "whole", **ahead)
    settings = {**PROCESSES, "collect.num_actors": 2, **ahead}
    with trainer_of("lstm", tmp_path / "killed", **settings) as trainer:
        collector = trainer.components.collector
        assert isinstance(collector, RemoteCollector)
        trainer.add_hook(Signalling(collector.pool, signal.SIGKILL, event))
        trainer.train()
        assert trainer.digest() == expected
        assert collector.num_restarts >= 3


def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    expected = digest_of("mlp", tmp_path / "whole", 2)
    settings = {**PROCESSES, "collect.num_actors": 2, "collect.task_timeout_seconds": 5.0}
    with trainer_of("mlp", tmp_path / "stopped", 2, **settings) as trainer:
        collector = trainer.components.collector
        assert isinstance(collector, RemoteCollector)
        trainer.add_hook(Signalling(collector.pool, signal.SIGSTOP, "on_rollout_start"))
        trainer.train()
        assert trainer.digest() == expected
        assert collector.num_restarts >= 1


@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_a_process_that_ends_again_and_again_ends_the_run(fault: str) -> None:
    message = r"pid \d+\) ended; 2 restarts within an hour did not help"
    with pytest.raises(RolloutError, match=message):
        small(partial(FaultyEnv, fault), **{"collect.max_actor_restarts": 2})


def test_an_error_of_an_environment_reaches_the_trainer() -> None:
    with (
        small(partial(FaultyEnv, "raise")) as trainer,
        pytest.raises(EnvError, match="the simulator lost its mind"),
    ):
        trainer.collect_rollouts(16)


def test_an_environment_that_cannot_be_made_there_is_told_of() -> None:
    lock = threading.Lock()

    def only_here() -> CorridorEnv:
        with lock:
            return CorridorEnv()

    with pytest.raises(ConfigError, match="pickle"):
        small(only_here)


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["in turn", "ahead"])
def test_loading_while_a_rollout_is_under_way_begins_from_there(
    tmp_path: Path, ahead: dict[str, Any]
) -> None:
    with small(core="lstm", **ahead) as trainer:
        trainer.train(total_timesteps=2 * 64)
        trainer.save(tmp_path / "saved")
        trainer.train(total_timesteps=3 * 64)
        expected = trainer.registry.digest()
        trainer.load(tmp_path / "saved")
        trainer.train(total_timesteps=3 * 64)
        assert trainer.registry.digest() == expected


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["in turn", "ahead"])
def test_rollouts_of_any_length_can_be_collected(ahead: dict[str, Any]) -> None:
    def seen(**settings: Any) -> list[Any]:
        with PPOTrainer(None, "CartPole-v1", **{**SMALL, **settings}) as trainer:
            data = [trainer.collect_rollouts(length) for length in (5, 7, 7)]
            assert [len(one["rewards"]) for one in data] == [5, 7, 7]
            return [one["observations"].tolist() for one in data]

    assert seen(**PROCESSES, **ahead) == seen(**ahead)


def test_all_processes_end_with_the_trainer() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    trainer = small(num_workers=2)
    trainer.collect_rollouts(16)
    collector = trainer.components.collector
    assert isinstance(collector, RemoteCollector)
    assert isinstance(collector.pool, ProcessPool)
    started = [psutil.Process(pid) for pid in collector.pool.pids]
    started += [worker for process in started for worker in process.children()]
    assert len(started) == 4
    trainer.close()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    left = {child.pid for child in psutil.Process().children(recursive=True)}
    assert not left & {process.pid for process in started} - before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collect.kind": "threads"}, "kind"),
        ({"collect.num_actors": 4}, r"num_actors=4 needs collect.kind=process"),
        ({**PROCESSES, "collect.num_actors": 3}, r"num_actors=3 have only 2 shards.*try num_shards=3"),
        ({"collect.address": "10.0.0.1:6379"}, "is that of a Ray cluster; add collect.kind=ray"),
        ({**AHEAD, "env_restore": "sync_reset"}, "use another env_restore than sync_reset"),
        ({**PROCESSES, "collect.task_timeout_seconds": 0}, "task_timeout_seconds"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.from_dict({**SMALL, **settings})


@pytest.mark.parametrize("settings", [PROCESSES, AHEAD], ids=["process", "overlap"])
def test_environments_that_exist_already_are_refused(settings: dict[str, Any]) -> None:
    make: Callable[[], Any] = CorridorEnv
    with pytest.raises(ConfigError, match="exists already; give an id or a factory"):
        PPOTrainer(None, make(), **{**SMALL, "num_envs": 1, "num_shards": 1, **settings})
