"""Environments of many agents: who acts when, what ends for whom, and all of it again after a restore."""

import json
import os
import signal
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.curriculum import Task
from metta.envs import make_vec_env
from metta.envs.agents.agents_env import AgentsEnv, is_parallel_env
from metta.envs.agents.agents_vec_env import AgentsVecEnv
from metta.envs.vec_env import RestorableVecEnv, TaskedVecEnv, agents_per_env
from metta.errors import EnvError
from metta.rl.ppo_trainer import PPOTrainer
from metta.state_tree import pack_state, unpack_state
from metta.stateful import digest_of
from tests.envs.tasks_and_agents import NAMES, Party


def acted(vec_env: Any, obs: Any, actions: Any) -> Any:
    """One step of all groups; results joined."""
    size = vec_env.num_rows // vec_env.num_groups
    results = []
    for group in range(vec_env.num_groups):
        rows = slice(group * size, (group + 1) * size)
        vec_env.send(group, actions[rows])
        results.append(vec_env.recv(group, {key: leaf[rows] for key, leaf in obs.items()}))
    return results


def test_each_agent_lives_its_own_life_when_others_die_and_join() -> None:
    with closing(make_vec_env(Party, num_envs=1)) as vec_env:
        assert isinstance(vec_env, AgentsVecEnv)
        assert isinstance(vec_env, RestorableVecEnv)
        assert isinstance(vec_env, TaskedVecEnv)
        assert (vec_env.num_rows, agents_per_env(vec_env), vec_env.agents) == (3, 3, NAMES)
        obs = vec_env.obs_spec.zeros(3)
        first = vec_env.reset([1, 1, 1], obs)
        assert first.starts.all()
        assert obs["obs"].tolist() == [[1, 0, 0], [0, 0, 0], [3, 0, 0]]  # `late` is not there yet
        told = []
        for _ in range(5):
            (result,) = acted(vec_env, obs, np.array([1, 2, 0]))
            told.append(
                {
                    "rewards": result.rewards.tolist(),
                    "valid": result.valid.tolist(),
                    "terminated": result.terminated.tolist(),
                    "truncated": result.truncated.tolist(),
                    "starts": result.starts.tolist(),
                    "final": None if result.final is None else
                    (result.final.rows.tolist(), result.final.obs["obs"].tolist()),
                    "seen": obs["obs"].tolist(),
                    "infos": result.infos,
                }
            )  # fmt: skip
    yes, no = True, False
    assert [t["rewards"] for t in told] == [
        [1, 0, 20],
        [1, 0, 20],
        [0, 12, 20],
        [0, 12, 20],
        [0, 12, 0],
    ]
    assert [t["valid"] for t in told] == [
        [yes, no, yes], [yes, no, yes], [no, yes, yes], [no, yes, yes], [no, yes, no],
    ]  # fmt: skip
    assert [t["terminated"] for t in told] == [
        [no] * 3, [yes, no, no], [no] * 3, [no] * 3, [no, yes, no],
    ]  # fmt: skip
    assert [t["truncated"] for t in told] == [[no] * 3] * 3 + [[no, no, yes], [no] * 3]
    # `late` begins when it joins; all begin together when nobody is left
    assert [t["starts"] for t in told] == [[no] * 3, [no, yes, no], [no] * 3, [no] * 3, [yes] * 3]
    assert [t["final"] for t in told] == [None, None, None, ([2], [[3, 4, 0]]), None]
    assert told[1]["seen"] == [[1, 2, 1], [2, 2, 0], [3, 2, 0]]
    assert told[3]["seen"] == [[0, 0, 0], [2, 4, 2], [3, 4, 0]]
    assert told[4]["seen"] == [[1, 0, 0], [0, 0, 0], [3, 0, 0]]
    assert [t["infos"] for t in told[:4]] == [[]] * 4
    assert told[4]["infos"] == [(0, {"age": 2.0}), (2, {"age": 4.0}), (1, {"age": 5.0})]


def test_the_last_observation_is_the_true_one_when_the_whole_episode_is_cut() -> None:
    with closing(make_vec_env(Party, num_envs=2, env_kwargs={"length": 6})) as vec_env:
        obs = vec_env.obs_spec.zeros(6)
        vec_env.reset(range(6), obs)
        for _ in range(6):
            (result,) = acted(vec_env, obs, np.array([0, 1, 2] * 2))
        assert result.starts.all()
        assert result.final is not None
        assert result.final.rows.tolist() == [2, 5]
        assert result.final.obs["obs"].tolist() == [[3, 6, 2]] * 2
        assert obs["obs"][:3].tolist() == [[1, 0, 0], [0, 0, 0], [3, 0, 0]]


def test_masks_are_those_of_each_agent_when_observations_bring_them() -> None:
    with closing(make_vec_env(Party, num_envs=1, env_kwargs={"masked": True})) as vec_env:
        assert vec_env.mask_size == 3
        obs = vec_env.obs_spec.zeros(3)
        results = [vec_env.reset([1, 1, 1], obs).action_mask.astype(int).tolist()]
        idle = np.zeros(3, np.int64)
        results += [acted(vec_env, obs, idle)[0].action_mask.astype(int).tolist() for _ in range(5)]
        free = [1, 1, 1]
        assert results == [
            [[1, 0, 0], free, [1, 0, 1]],
            [[1, 1, 0], free, [1, 1, 1]],
            [free, [1, 0, 0], [1, 0, 1]],
            [free, [1, 1, 0], [1, 1, 1]],
            [free, [1, 0, 0], free],
            [[1, 0, 0], free, [1, 0, 1]],
        ]


def stream(vec_env: Any, obs: Any, steps: range) -> list[str]:
    told = []
    for step in steps:
        for result in acted(vec_env, obs, (np.arange(vec_env.num_rows) + step) % 3):
            final = None if result.final is None else [result.final.rows, result.final.obs]
            flags = [result.valid, result.terminated, result.truncated, result.starts]
            told.append(digest_of([obs, result.rewards, flags, final, str(result.infos)]))
    return told


BACKENDS: dict[str, dict[str, int]] = {
    "serial": {"num_groups": 2},
    "multiprocess": {"num_groups": 2, "num_workers": 2},
}


def opened(backend: str, **kwargs: Any) -> Any:
    kwargs = {"length": 6, "noise": True, **kwargs}
    return make_vec_env(Party, num_envs=4, env_kwargs=kwargs, **BACKENDS[backend])


def test_streams_are_equal_when_workers_step_the_agents() -> None:
    told = []
    for backend in BACKENDS:
        with closing(opened(backend)) as vec_env:
            obs = vec_env.obs_spec.zeros(12)
            vec_env.reset(range(12), obs)
            told.append(stream(vec_env, obs, range(40)))
    assert told[0] == told[1]


@pytest.mark.parametrize("wanted", ["snapshot", "repeat"])
@pytest.mark.parametrize(("backend", "cut"), [("serial", 6), ("serial", 9), ("multiprocess", 9)])
def test_steps_are_equal_when_another_one_takes_the_state(
    backend: str, wanted: Any, cut: int
) -> None:
    with closing(opened(backend)) as one, closing(opened(backend)) as other:
        assert one.prepare_restore(wanted).restore_class == wanted
        other.prepare_restore(wanted)
        obs = one.obs_spec.zeros(12)
        one.reset(range(12), obs)
        stream(one, obs, range(cut))
        tree, tensors = pack_state(one.state_dict())
        state = unpack_state(json.loads(json.dumps(tree)), tensors)
        seen = other.load_state_dict(state)
        if seen is not None:
            assert digest_of(dict(seen)) == digest_of(obs)
        again = {key: leaf.copy() for key, leaf in obs.items()}
        assert stream(other, again, range(cut, 30)) == stream(one, obs, range(cut, 30))


@pytest.mark.parametrize("killed_at", [6, 7])
def test_nothing_is_noticed_when_a_worker_dies_between_steps(killed_at: int) -> None:
    with closing(opened("multiprocess")) as one, closing(opened("serial")) as other:
        obs, again = one.obs_spec.zeros(12), one.obs_spec.zeros(12)
        one.reset(range(12), obs)
        other.reset(range(12), again)
        told = stream(one, obs, range(killed_at))
        os.kill(one.worker_pids[0], signal.SIGKILL)
        told += stream(one, obs, range(killed_at, 20))
        assert told == stream(other, again, range(20))
        assert [restart.outcome for restart in one.restarts] == ["exact"]


def test_tasks_are_played_by_all_agents_when_there_are_several() -> None:
    tasks = [Task(Party, {"length": length}, str(length)) for length in (3, 6)]
    with closing(make_vec_env(tasks, num_envs=2)) as vec_env:
        vec_env.next_tasks[:] = [0, 1]
        obs = vec_env.obs_spec.zeros(6)
        vec_env.reset(range(6), obs)
        cuts = []
        for step in range(1, 7):
            (result,) = acted(vec_env, obs, np.zeros(6, np.int64))
            cuts += [(step, row) for row in np.flatnonzero(result.truncated).tolist()]
        assert cuts == [(3, 2), (6, 5)]


def test_agents_learn_and_are_counted_when_they_train() -> None:
    trainer = PPOTrainer(None, Party, num_envs=4, horizon=32, minibatch_size=48)
    try:
        data = trainer.collect_rollouts()
        # 5 steps an episode, of which 2, 3 and 4 are taken: 9 of 15
        assert float(data["valid"].float().mean()) == pytest.approx(0.6, abs=0.02)
        history = trainer.train(total_timesteps=600)
        # (0 + 10 + 20) steps' worth of index, and actions of 0 to 2
        assert 30.0 <= history["episode_return"][-1] <= 40.0
    finally:
        trainer.env.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_real_environments_train_when_they_are_named(num_workers: int) -> None:
    pytest.importorskip("mpe2", reason="needs mpe2 (extra pettingzoo)")
    name = "pettingzoo:mpe2.simple_spread_v3"
    trainer = PPOTrainer(
        None, name, num_envs=2, num_workers=num_workers, horizon=32, minibatch_size=96
    )
    try:
        assert trainer.env.num_rows == 6
        assert trainer.train(total_timesteps=300)["episode_return"][-1] < 0
    finally:
        trainer.env.close()


def test_the_error_says_what_to_do_when_no_such_module_exists() -> None:
    with pytest.raises(EnvError, match="install what it needs"):
        make_vec_env("pettingzoo:no_such_module")
    with pytest.raises(EnvError, match="not a module with a parallel_env"):
        make_vec_env("pettingzoo:json")


class Odd(Party):
    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3) if agent == "early" else spaces.Box(-1, 1, (2,), np.float32)


class MaskedOdd(Party):
    def __init__(self) -> None:
        super().__init__(masked=True)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3 if agent == "early" else 4)


class Nobody(Party):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Talkers(Party):
    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Text(3)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Odd, "need actions of one kind"),
        (MaskedOdd, "agent 'early' .*action masks and texts do not allow"),
        (Nobody, "no possible_agents"),
        (Talkers, "Text"),
    ],
)
def test_the_error_says_why_when_agents_cannot_train_together(kind: Any, says: str) -> None:
    with pytest.raises(EnvError, match=says):
        make_vec_env(kind)


@pytest.mark.parametrize(
    ("space", "batched"),
    [
        (spaces.Discrete(3, start=2), spaces.MultiDiscrete([3] * 3, start=[2] * 3)),
        (spaces.MultiDiscrete([2, 5]), spaces.MultiDiscrete([[2, 5]] * 3)),
        (spaces.Box(-1, 2, (2,), np.float32), spaces.Box(-1, 2, (3, 2), np.float32)),
    ],
)
def test_every_action_space_has_one_for_all_agents_when_it_can(space: Any, batched: Any) -> None:
    class Chosen(Party):
        def action_space(self, agent: str) -> Any:
            return space

    env = AgentsEnv(Chosen())
    assert env.action_space == batched
    assert is_parallel_env(Chosen())
    assert not is_parallel_env(env)
    env.close()
