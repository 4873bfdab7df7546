"""Workers that collect elsewhere, by `metta.remote_workers`: the same bits wherever they are."""

import contextlib
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from metta import PPOTrainer, combine_rollouts, make_policy, remote_workers
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv, MaskedCorridorEnv, NestedEnv
from metta.errors import ConfigError, EnvError, MettaWarning, PolicyError, RolloutError
from metta.rl.remote.process_pool import ProcessPool
from metta.rl.remote.workers import RemoteWorkers
from metta.rollout import Rollout
from metta.stateful import digest_of
from metta.train.run_config import CurriculumConfig
from tests.envs.faulty_envs import FaultyEnv

SMALL = {"num_envs": 2, "horizon": 16, "hidden_size": 8, "bptt_horizon": 8, "num_minibatches": 2,
         "update_epochs": 2, "recipe": "none", "verbose": False}  # fmt: skip


def tasks() -> Curriculum:
    lengths = {"max_episode_steps": [4, 8, 16]}
    return Curriculum(
        CurriculumConfig(env="CartPole-v1", kind="learning_progress", buckets=lengths)
    )


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "normalised": ("CartPole-v1", {"normalize_observations": True, "normalize_returns": True}),
    "recurrent": ("CartPole-v1", {"core": "lstm"}),
    "masks": (MaskedCorridorEnv, {}),
    "nested": (NestedEnv, {}),
    "continuous": ("Pendulum-v1", {"gamma": 0.9}),
    "agents": (
        "grid/gather",
        {"learner_share": 0.5, "self_play_interval": 1, "pool_size": 1, "learning_rate": 0.1},
    ),
    "curriculum": (tasks, {}),
}


def workers_of(n: int = 2, env: Any = "CartPole-v1", policy: Any = None, **settings: Any) -> Any:
    return remote_workers(n, env, policy, **{**SMALL, **settings})


def equal(first: Rollout, second: Rollout) -> bool:
    return digest_of(dict(first)) == digest_of(dict(second))


def pids_of(workers: RemoteWorkers) -> list[int]:
    assert isinstance(workers.ledger.pool, ProcessPool)
    return workers.ledger.pool.pids


def kill(workers: RemoteWorkers, place: int) -> None:
    """It may be dead already, and be replaced when something is asked of it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids_of(workers)[place], signal.SIGKILL)


def digests_of_rollouts(kind: str, restart: int | None = None) -> list[str]:
    """Three rounds of learning from two workers; one at `restart` begins anew before the second."""
    found = []
    with (
        PPOTrainer(None, "CartPole-v1", seed=4, **{**SMALL, "numerics.threads": 1}) as trainer,
        workers_of(policy=trainer.policy, kind=kind) as workers,
    ):
        for number in range(3):
            if restart is not None and number == 1:
                workers.ledger.pool.restart(restart)
            data = combine_rollouts(workers.collect_rollouts(16))
            found.append(digest_of(dict(data)))
            trainer.learn(data)
            workers.load_weights(trainer.policy)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_workers_give_the_bits_of_a_trainer_of_as_many_shards(kind: str) -> None:
    env, settings = KINDS[kind]
    make = env if kind == "curriculum" else lambda: env
    settings = {**SMALL, **settings, "seed": 7}
    shards = {"num_envs": 4, "num_shards": 2}
    with (
        PPOTrainer(None, make(), **{**settings, **shards}) as trainer,
        remote_workers(2, make(), **settings) as workers,
    ):
        for number in range(3):
            expected = trainer.collect_rollouts(16)
            # in whichever order they are asked
            parts = [worker.collect_rollouts(16) for worker in workers] if number else None
            data = combine_rollouts(parts or workers.collect_rollouts())
            assert equal(data, expected)
            assert data.manifest == expected.manifest | {
                "config_hash": data.manifest["config_hash"]
            }
            trainer.learn(data)
            workers.load_weights(trainer.policy)
        assert workers.mean_return == pytest.approx(trainer.mean_return, nan_ok=True)


def test_the_plain_form_learns_from_all_workers() -> None:
    with (
        PPOTrainer(None, "CartPole-v1", seed=1, **SMALL) as trainer,
        workers_of(3, policy=trainer.policy) as workers,
    ):
        before = trainer.policy.parameter_hash()
        rollouts = [worker.collect_rollouts(32) for worker in workers]
        trainer.learn(combine_rollouts(rollouts))
        assert trainer.policy.parameter_hash() != before
        assert {data.manifest["policy_hash"] for data in rollouts} == {before}
        assert [data.manifest["worker"] for data in rollouts] == [0, 1, 2]
        assert all(data["rewards"].shape == (32, 2) for data in rollouts)
        assert len({digest_of(dict(data)) for data in rollouts}) == 3


def test_local_trainers_are_workers_too() -> None:
    workers = [PPOTrainer(None, "CartPole-v1", seed=k, **SMALL) for k in range(3)]
    with PPOTrainer(None, "CartPole-v1", seed=9, **SMALL) as trainer:
        for _ in range(2):
            for worker in workers:
                worker.policy.load_state_dict(trainer.policy.state_dict())
            rollouts = [worker.collect_rollouts(16) for worker in workers]
            assert len({digest_of(dict(data)) for data in rollouts}) == 3
            assert {data.manifest["policy_hash"] for data in rollouts} == {
                trainer.policy.parameter_hash()
            }
            data = combine_rollouts(rollouts)
            assert data["rewards"].shape == (16, 6)
            before = trainer.policy.parameter_hash()
            trainer.learn(data)
            assert trainer.policy.parameter_hash() != before
    for worker in workers:
        worker.close()


def test_a_worker_does_not_depend_on_the_others() -> None:
    with workers_of(3, tasks(), kind="here") as workers:
        expected = [workers.collect_rollouts(64) for _ in range(3)]
    with workers_of(3, tasks(), kind="here") as workers:
        last = [workers[2].collect_rollouts(64) for _ in range(3)]
        first = [workers[0].collect_rollouts(64) for _ in range(3)]
    with workers_of(1, tasks(), kind="here") as workers:
        alone = [workers[0].collect_rollouts(64) for _ in range(3)]
    for number in range(3):
        assert equal(last[number], expected[number][2])
        assert equal(first[number], expected[number][0])
        assert equal(alone[number], expected[number][0])


def test_weights_that_are_loaded_count_from_the_next_rollout_on() -> None:
    with (
        PPOTrainer(None, "CartPole-v1", seed=4, **SMALL) as trainer,
        workers_of(policy=trainer.policy) as workers,
        workers_of(policy=trainer.policy, kind="here") as others,
    ):
        weights = {k: v + 0.3 for k, v in trainer.policy.state_dict().items()}
        workers.start(8)
        trainer.policy.load_state_dict(weights)
        workers[0].load_weights(trainer.policy)
        # its task is given again, with the weights that it began with
        kill(workers, 0)
        begun, expected = workers.collect_rollouts(8), others.collect_rollouts(8)
        assert all(equal(a, b) for a, b in zip(begun, expected, strict=True))
        assert begun[0].manifest == expected[0].manifest | {
            "config_hash": begun[0].manifest["config_hash"]
        }
        found, old = workers.collect_rollouts(8), others.collect_rollouts(8)
        assert found[0].manifest["policy_hash"] == trainer.policy.parameter_hash()
        assert not torch.equal(found[0]["values"], old[0]["values"])
        assert equal(found[1], old[1])
        others.load_weights(trainer.policy)
        workers.load_weights(trainer.policy)
        found, other = workers.collect_rollouts(8), others.collect_rollouts(8)
        assert equal(found[1], other[1])


def test_a_killed_worker_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    expected = digests_of_rollouts("here")
    found = []
    with (
        PPOTrainer(None, "CartPole-v1", seed=4, **{**SMALL, "numerics.threads": 1}) as trainer,
        workers_of(policy=trainer.policy, verbose=True) as workers,
    ):
        for number in range(3):
            workers.start(16)
            kill(workers, number % 2)
            data = combine_rollouts([worker.collect_rollouts() for worker in workers])
            found.append(digest_of(dict(data)))
            kill(workers, 1)
            trainer.learn(data)
            workers.load_weights(trainer.policy)
        assert workers.num_restarts >= 3
    assert found == expected
    assert "another one collects in place 1 from now on" in capsys.readouterr().err


def test_workers_that_die_again_and_again_say_so_each_time() -> None:
    with workers_of(1, **{"collect.max_actor_restarts": 0}) as workers:
        kill(workers, 0)
        for _ in range(2):
            with pytest.raises(RolloutError, match="0 restarts within an hour did not help"):
                workers[0].collect_rollouts(4)


def test_all_processes_end_with_the_workers() -> None:
    workers = workers_of(2, num_workers=2)
    workers.start(8)
    started = [psutil.Process(pid) for pid in pids_of(workers)]
    started += [c for process in started for c in process.children(recursive=True)]
    assert len(started) >= 6
    workers.close()
    workers.close()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    policy = make_policy(*spaces())
    calls = [workers.collect_rollouts, workers.start, workers[0].collect_rollouts, workers[1].start,
             partial(workers.load_weights, policy), partial(workers[0].load_weights, policy)]  # fmt: skip
    for call in calls:
        with pytest.raises(RolloutError, match=r"these workers were closed; make others"):
            call()


def spaces() -> tuple[Any, Any]:
    env = CorridorEnv()
    return env.observation_space, env.action_space


def test_nothing_is_left_where_workers_cannot_be_made() -> None:
    with pytest.raises(RolloutError, match="1 restarts within an hour did not help"):
        workers_of(1, partial(FaultyEnv, "kill"), **{"collect.max_actor_restarts": 1})
    assert not [c for c in multiprocessing.active_children() if c.name.startswith("collecting")]


def test_an_error_of_an_environment_arrives_as_what_it_is() -> None:
    with workers_of(2, partial(FaultyEnv, "raise")) as workers:
        short = [worker.collect_rollouts(2) for worker in workers]
        assert [len(data["rewards"]) for data in short] == [2, 2]
        for _ in range(2):  # the same again, from where the worker was; the process is still there
            with pytest.raises(EnvError, match="the simulator lost its mind"):
                workers[1].collect_rollouts(16)
        with pytest.raises(EnvError, match="the simulator lost its mind"):
            workers.collect_rollouts(16)
        assert workers.num_restarts == 0


def test_what_was_started_is_taken_as_it_was_started() -> None:
    with workers_of(2, kind="here") as workers:
        workers[0].start(8)
        assert [worker.is_started for worker in workers] == [True, False]
        with pytest.raises(RolloutError, match="worker 0 is collecting 8 steps already"):
            workers[0].start(8)
        with pytest.raises(ConfigError, match=r"collect_rollouts\(5\): worker 0 was started for 8"):
            workers[0].collect_rollouts(5)
        assert [len(data["rewards"]) for data in workers.collect_rollouts()] == [8, 16]
        with pytest.warns(MettaWarning, match=r"collect_rollouts\(0\) collects nothing"):
            assert workers[0].collect_rollouts(0)["rewards"].shape == (0, 2)
        assert len(workers[0:1]) == 1


def test_collecting_here_leaves_the_threads_of_this_process() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with workers_of(1, kind="here") as workers:
            workers.collect_rollouts(4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((0, "CartPole-v1"), {}, r"remote_workers\(n=0\): allowed is a whole number from 1"),
        ((True, "CartPole-v1"), {}, r"n=True"),
        ((2.0, "CartPole-v1"), {}, r"n=2\.0"),
        ((2, CorridorEnv()), {}, "exists already; give an id or a factory"),
        ((2, None), {}, "found no environment"),
        ((2, "CartPole-v1"), {"kind": "threads"}, "kind"),
        ((2, "CartPole-v1"), {"address": "10.0.0.1:6379"}, "add collect.kind=ray"),
        ((2, "CartPole-v1"), {"num_shards": 2}, "num_shards=2 has no effect on remote_workers"),
        ((2, "CartPole-v1"), {"collect.overlap": True}, "collect.overlap=true has no effect"),
        ((2, "CartPole-v1"), {"opponents": ["first:best"]}, "self_play.opponents has no effect"),
        ((2, "CartPole-v1"), {"num_env": 2}, "num_envs"),
    ],
)
def test_what_makes_no_workers_is_refused(
    arguments: tuple[Any, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        remote_workers(*arguments, **settings)


@pytest.mark.parametrize("steps", [1.5, "many", True, -3])
def test_steps_that_are_none_are_refused(steps: Any) -> None:
    with workers_of(1, kind="here") as workers:
        with pytest.raises(ConfigError, match="n_steps"):
            workers.start(steps)
        with pytest.raises(ConfigError, match="does not divide the horizon of 9"):
            workers_of(1, kind="here", core="lstm").collect_rollouts(9)


def test_weights_of_another_policy_are_refused() -> None:
    with (
        workers_of(1, kind="here") as workers,
        PPOTrainer(None, "CartPole-v1", **{**SMALL, "hidden_size": 16}) as other,
    ):
        with pytest.raises(PolicyError, match="another architecture or other spaces"):
            workers.load_weights(other.policy)
        with pytest.raises(PolicyError, match="needs a policy of metta, got a Linear"):
            workers[0].load_weights(torch.nn.Linear(2, 2))
        with pytest.raises(PolicyError, match="the policy was made for"):
            workers_of(1, CorridorEnv, other.policy)


@pytest.fixture(scope="module")
def on_ray() -> dict[str, Any]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra ray")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # paths of its sockets must be short
        found = subprocess.run(
            [sys.executable, "-m", "tests.elsewhere.ray_workers", folder],
            capture_output=True, text=True, timeout=280,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert found.returncode == 0, found.stderr
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


@pytest.mark.timeout(300)
def test_workers_on_ray_give_the_same_bits(on_ray: dict[str, Any]) -> None:
    assert on_ray["workers"] == on_ray["replaced"] == digests_of_rollouts("here")
    assert on_ray["still connected"]


@pytest.mark.timeout(300)
def test_trainers_are_actors_of_ray_as_they_are(on_ray: dict[str, Any]) -> None:
    assert on_ray["there"] == on_ray["here"]
    assert len(set(on_ray["there"])) == 2
    assert on_ray["shape"] == [16, 4]
    assert on_ray["updates"] == 1
    assert on_ray["refused"]
