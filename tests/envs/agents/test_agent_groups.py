"""Rows tell the group of their agent; everything else is as it was."""

import json
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from metta.curriculum import Curriculum, Task
from metta.envs import make_vec_env
from metta.envs.agents.agent_groups import GroupedVecEnv, split_agent_groups
from metta.envs.vec_env import RestorableVecEnv, TaskedVecEnv, VecEnv, agents_per_env
from metta.errors import ConfigError
from metta.state_tree import pack_state, unpack_state
from metta.stateful import digest_of
from metta.train.agent_groups import (
    AGENT_GROUPS,
    GROUP_KEY,
    MAX_AGENT_GROUPS,
    agent_group_rules,
    agent_group_sizes,
)
from metta.train.layers import resolve
from metta.train.train_config import CurriculumConfig

GRID = {"num_agents": 4, "view_radius": 2, "horizon": 6}


class Pair:
    """Two agents who see what `kind` of observation says; cut short after 3 steps."""

    possible_agents = ("a", "b")

    def __init__(self, kind: str = "tuple") -> None:
        self.kind, self.now = kind, 0
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        box = spaces.Box(-9, 9, (2,), np.float32)
        kinds = {
            "box": box,
            "tuple": spaces.Tuple([box, spaces.Discrete(5)]),
            "masked": spaces.Dict({"seen": box, "action_mask": spaces.MultiBinary(2)}),
            "taken": spaces.Dict({"seen": box, GROUP_KEY: spaces.Discrete(2)}),
        }
        return kinds[self.kind]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def _see(self) -> dict[str, Any]:
        seen = {n: np.array([i, self.now], np.float32) for i, n in enumerate(self.possible_agents)}
        if self.kind == "tuple":
            return {name: (own, self.now) for name, own in seen.items()}
        if self.kind == "taken":
            return {name: {"seen": own, GROUP_KEY: 0} for name, own in seen.items()}
        if self.kind == "masked":
            return {n: {"seen": own, "action_mask": np.array([1, 0])} for n, own in seen.items()}
        return seen

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.now, self.agents = 0, list(self.possible_agents)
        return self._see(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.now += 1
        over = dict.fromkeys(self.agents, self.now == 3)
        no = dict.fromkeys(self.agents, False)
        rewards = {name: float(actions[name]) for name in self.agents}
        self.agents = [] if self.now == 3 else self.agents
        return self._see(), rewards, no, over, {}

    def get_state(self) -> Any:
        return self.now, self.agents

    def set_state(self, state: Any) -> None:
        self.now, self.agents = state

    def close(self) -> None:
        return None


def played(vec_env: Any, obs: Any, steps: range) -> list[str]:
    told = []
    size = vec_env.num_rows // vec_env.num_groups
    for step in steps:
        for group in range(vec_env.num_groups):
            rows = slice(group * size, (group + 1) * size)
            vec_env.send(group, (np.arange(size) + step) % 2)
            result = vec_env.recv(group, {key: leaf[rows] for key, leaf in obs.items()})
            final = None if result.final is None else dict(result.final.obs)
            told.append(digest_of([obs, result.rewards, result.starts, final]))
    return told


def test_rows_name_their_group_when_environments_step_in_two_groups_of_rows() -> None:
    kwargs = {**GRID, AGENT_GROUPS: [1, 3]}
    with closing(make_vec_env("grid/crowd", num_envs=4, num_groups=2, env_kwargs=kwargs)) as env:
        assert isinstance(env, GroupedVecEnv)
        assert isinstance(env, VecEnv)
        assert isinstance(env, RestorableVecEnv)
        assert isinstance(env, TaskedVecEnv)
        assert (agents_per_env(env), env.num_rows, env.num_groups) == (4, 16, 2)
        obs = env.obs_spec.zeros(16)
        obs[GROUP_KEY][:] = 7
        env.reset(range(16), obs)
        assert obs[GROUP_KEY].tolist() == [0, 1, 1, 1] * 4
        obs[GROUP_KEY][:] = 7
        played(env, obs, range(1))
        assert obs[GROUP_KEY].tolist() == [0, 1, 1, 1] * 4
        assert env.tasks.tolist() == [0, 0, 0, 0]
        assert env.view(0) is not None


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("box", ["obs", GROUP_KEY]),
        ("tuple", ["obs/0", "obs/1", GROUP_KEY]),
        ("masked", ["seen", GROUP_KEY]),
    ],
)
def test_last_observations_have_their_group_when_episodes_are_cut(
    kind: str, keys: list[str]
) -> None:
    kwargs = {"kind": kind, AGENT_GROUPS: [1, 1]}
    with closing(make_vec_env(Pair, num_envs=2, env_kwargs=kwargs)) as env:
        assert [leaf.key for leaf in env.obs_spec.leaves] == keys
        assert env.mask_size == (2 if kind == "masked" else 0)
        obs = env.obs_spec.zeros(4)
        env.reset(range(4), obs)
        for _ in range(3):
            env.send(0, np.array([0, 0, 0, 0]))
            result = env.recv(0, obs)
        assert result.final is not None
        assert list(result.final.obs) == keys
        assert result.final.obs[GROUP_KEY].tolist() == [0, 1, 0, 1]
        assert result.final.obs[keys[0]].tolist() == [[0, 3], [1, 3], [0, 3], [1, 3]]
        assert obs[keys[0]].tolist() == [[0, 0], [1, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("wanted", ["snapshot", "repeat"])
def test_steps_are_equal_when_another_one_takes_the_state(wanted: Any) -> None:
    def made() -> Any:
        return make_vec_env(Pair, num_envs=2, env_kwargs={AGENT_GROUPS: [1, 1]})

    with closing(made()) as one, closing(made()) as other:
        assert one.prepare_restore(wanted).restore_class == wanted
        other.prepare_restore(wanted)
        obs = one.obs_spec.zeros(4)
        one.reset(range(4), obs)
        played(one, obs, range(2))
        tree, tensors = pack_state(one.state_dict())
        seen = other.load_state_dict(unpack_state(json.loads(json.dumps(tree)), tensors))
        if wanted == "repeat":
            assert digest_of(dict(seen)) == digest_of(obs)
        again = {key: leaf.copy() for key, leaf in obs.items()}
        assert played(other, again, range(2, 8)) == played(one, obs, range(2, 8))


def test_nothing_can_be_restored_when_the_environment_below_cannot() -> None:
    class Plain:
        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
        obs_spec = make_vec_env("CartPole-v1").obs_spec
        num_rows = num_groups = 1
        mask_size = num_resets = 0

    env = GroupedVecEnv(Plain(), [1])  # type: ignore[arg-type]  # a part of one is enough here
    assert env.prepare_restore().restore_class == "boundary"
    assert env.state_dict() == {"class": "boundary"}
    assert env.load_state_dict({"class": "boundary"}) is None


def test_the_error_tells_both_numbers_when_sizes_do_not_add_up() -> None:
    with pytest.raises(ConfigError, match=r"\[2, 1\] are 3 agents, but an environment has 4"):
        make_vec_env("grid/crowd", env_kwargs={**GRID, AGENT_GROUPS: [2, 1]})
    with pytest.raises(ConfigError, match="are 2 agents, but an environment has 1"):
        make_vec_env(gymnasium.make("CartPole-v1"), env_kwargs={AGENT_GROUPS: [1, 1]})
    with pytest.raises(ConfigError, match="have an entry 'agent_group' already"):
        make_vec_env(Pair, env_kwargs={"kind": "taken", AGENT_GROUPS: [1, 1]})


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([], "must be a list of 1 to 256"),
        ("21", "must be a list"),
        (3, "must be a list"),
        ([1] * (MAX_AGENT_GROUPS + 1), "must be a list of 1 to 256"),
        ([2, 0], "at least 1"),
        ([2, True], "whole number"),
        ([2, 1.0], "whole number"),
    ],
    ids=["none", "text", "number", "too-many", "empty-group", "truth", "float"],
)
def test_the_settings_are_refused_before_any_work_when_sizes_are_none(
    sizes: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        agent_group_sizes(sizes)
    with pytest.raises(ConfigError, match=says):
        CurriculumConfig(env_kwargs={AGENT_GROUPS: sizes})


def test_groups_are_set_when_the_command_line_or_a_file_names_them(tmp_path: Any) -> None:
    file = tmp_path / "groups.yaml"
    file.write_text(
        "trainer: {curriculum: {env: grid/crowd, env_kwargs: {agent_groups: [1, 3]}}}\n"
    )
    by_file = resolve(None, [file]).config.trainer.curriculum
    by_text = resolve("grid", [], ["env_kwargs={agent_groups: [1, 3]}"]).config.trainer.curriculum
    for found in (by_file, by_text):
        assert split_agent_groups(found.env_kwargs) == ({}, (1, 3))
    assert agent_group_rules({}) == []


def test_groups_are_those_of_all_tasks_when_a_curriculum_has_several() -> None:
    config = CurriculumConfig(
        kind="random",
        env="grid/crowd",
        env_kwargs={**GRID, AGENT_GROUPS: [2, 2]},
        buckets={"num_resources": [4, 8]},
    )
    with closing(make_vec_env(Curriculum(config).tasks, num_envs=2)) as env:
        assert isinstance(env, GroupedVecEnv)
        assert env.num_tasks == 2
        assert make_vec_env(env, env_kwargs={AGENT_GROUPS: [2, 2]}) is env
        with pytest.raises(ConfigError, match="already"):
            make_vec_env(env, env_kwargs={AGENT_GROUPS: [1, 3]})
    tasks = [Task("grid/crowd", {**GRID, AGENT_GROUPS: sizes}) for sizes in ([4], [2, 2])]
    with pytest.raises(ConfigError, match=r"agent_groups of \[\[2, 2\], \[4\]\]"):
        make_vec_env(tasks)
