"""Agents that do not learn: who plays them, what the learner sees, and all of it again after a restore."""

import json
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs import make_vec_env
from metta.envs.vec_env import RestorableVecEnv, VecEnv, agents_per_env
from metta.errors import ConfigError, StateError
from metta.rl.collect.opponents import OpponentPool, OpponentVecEnv
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.saved_opponents import load_opponents
from metta.state_tree import pack_state, unpack_state
from metta.stateful import digest_of
from metta.store.policy_store import PolicyStore
from metta.train.train_config import AgentConfig, TrainerConfig

LENGTH = 5


class Duel:
    """Each of four agents earns the sum of the others' actions, and sees all actions."""

    def __init__(self) -> None:
        self.possible_agents = ["a", "b", "c", "d"]
        self.agents: list[str] = []
        self.now = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-10, 10, (6,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.now = list(self.possible_agents), 0
        self.random = np.random.default_rng(seed)
        return self._see([0] * 4), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.now += 1
        taken = [actions[name] for name in self.possible_agents]
        rewards = {n: float(sum(taken) - actions[n]) for n in self.possible_agents}
        over = dict.fromkeys(self.possible_agents, self.now >= LENGTH)
        no = dict.fromkeys(self.possible_agents, False)
        seen = self._see(taken)
        if self.now >= LENGTH:
            self.agents = []
        return seen, rewards, no, over, {n: {} for n in self.possible_agents}

    def _see(self, taken: list[int]) -> Any:
        noise = float(self.random.integers(5))
        return {
            name: np.array([*taken, self.now, noise + index], np.float32)
            for index, name in enumerate(self.possible_agents)
        }

    def get_state(self) -> Any:
        return self.now, self.agents, self.random

    def set_state(self, state: Any) -> None:
        self.now, self.agents, self.random = state

    def close(self) -> None:
        return None


class Always(nn.Module):
    """Takes one action whatever it sees."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.action = action

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.full((len(obs), 3), -1e4)
        logits[:, self.action] = 1e4
        return logits * self.scale, obs[:, 0] * self.scale


def always(action: int) -> Policy:
    return Policy(Always(action), spaces.Box(-10, 10, (6,), np.float32), spaces.Discrete(3))


def learner(core: Any = "none") -> Policy:
    box = spaces.Box(-10, 10, (6,), np.float32)
    return make_policy(box, spaces.Discrete(3), AgentConfig(core=core, hidden_size=8), seed=3)


def opened(fixed: list[Policy], *, core: Any = "none", **options: Any) -> OpponentVecEnv:
    inner = make_vec_env(Duel, num_envs=4, **options)
    return OpponentVecEnv(inner, OpponentPool(learner(core), fixed), 2, seed=5)


def played(env: OpponentVecEnv, obs: Any, steps: range) -> list[str]:
    size = env.num_rows // env.num_groups
    told = []
    for step in steps:
        for group in range(env.num_groups):
            rows = slice(group * size, (group + 1) * size)
            env.send(group, (np.arange(size) + step) % 3)
            result = env.recv(group, {"obs": obs["obs"][rows]})
            final = None if result.final is None else [result.final.rows, result.final.obs]
            flags = [result.valid, result.truncated, result.starts]
            told.append(digest_of([obs["obs"][rows], result.rewards, flags, final]))
    return told


def test_only_learners_are_seen_when_others_are_played() -> None:
    with closing(opened([always(2)])) as env:
        assert isinstance(env, VecEnv)
        assert isinstance(env, RestorableVecEnv)
        assert (env.num_rows, agents_per_env(env)) == (8, 2)
        obs = env.obs_spec.zeros(8)
        env.reset(range(8), obs)
        for step in range(1, LENGTH + 1):
            env.send(0, np.array([0, 1] * 4))
            result = env.recv(0, obs)
            # the others take 2 each; the other learner 1 or 0
            assert result.rewards.tolist() == [5.0, 4.0] * 4
            if step < LENGTH:
                assert obs["obs"][:, :5].tolist() == [[0, 1, 2, 2, step]] * 8
        assert result.starts.all()
        assert result.final is not None
        assert result.final.rows.tolist() == list(range(8))
        assert result.final.obs["obs"][:, :5].tolist() == [[0, 1, 2, 2, LENGTH]] * 8


def test_opponents_change_with_episodes_when_there_are_several() -> None:
    with closing(opened([always(0), always(1), always(2)])) as env:
        obs = env.obs_spec.zeros(8)
        env.reset(range(8), obs)
        met: list[set[float]] = [set() for _ in range(4)]
        for _ in range(12):
            seen = set()
            for _ in range(LENGTH - 1):
                env.send(0, np.zeros(8, np.int64))
                env.recv(0, obs)
                seen.add(tuple(obs["obs"][::2, 2]))
                assert (obs["obs"][:, 2] == obs["obs"][:, 3]).all()
            (one,) = seen  # who plays stays for the episode
            for index, action in enumerate(one):
                met[index].add(action)
            env.send(0, np.zeros(8, np.int64))
            env.recv(0, obs)
        assert all(actions == {0.0, 1.0, 2.0} for actions in met)


@pytest.mark.parametrize(
    ("core", "options"),
    [("none", {}), ("lstm", {"num_groups": 2}), ("lstm", {"num_groups": 2, "num_workers": 2})],
)
@pytest.mark.parametrize("cut", [7])
def test_steps_are_equal_when_another_one_takes_the_state(
    options: Any, core: Any, cut: int
) -> None:
    fixed = [learner(core), make_policy(learner().observation_space, spaces.Discrete(3),
                                        AgentConfig(core=core, hidden_size=8), seed=9)]  # fmt: skip
    with (
        closing(opened(fixed, core=core, **options)) as one,
        closing(opened(fixed, core=core, **options)) as other,
    ):
        for env in (one, other):
            assert env.prepare_restore().restore_class == "snapshot"
        obs = one.obs_spec.zeros(8)
        one.reset(range(8), obs)
        played(one, obs, range(cut))
        tree, tensors = pack_state(one.state_dict())
        other.load_state_dict(unpack_state(json.loads(json.dumps(tree)), tensors))
        again = {"obs": obs["obs"].copy()}
        assert played(other, again, range(cut, 20)) == played(one, obs, range(cut, 20))


def test_past_selves_join_when_an_interval_has_passed() -> None:
    trainer = PPOTrainer(
        None, Duel, num_envs=4, horizon=8, minibatch_size=32, learner_share=0.5,
        self_play_interval=2, pool_size=3, learning_rate=0.01,
    )  # fmt: skip
    try:
        pool = trainer.env.pool
        hashes = {trainer.policy.parameter_hash()}
        assert [one.parameter_hash() for one in pool.past] == list(hashes)
        trainer.train(
            total_timesteps=640,
            on_epoch_end=lambda *_: hashes.add(trainer.policy.parameter_hash()),
        )
        assert trainer.env.num_rows == 8
        kept = [one.parameter_hash() for one in pool.past]
        assert len(kept) == len(set(kept)) == 3
        assert set(kept) < hashes
        assert not any(p.requires_grad for one in pool.past for p in one.parameters())
        assert "opponents" in trainer.registry.names()
    finally:
        trainer.env.close()


def test_others_stay_in_their_places_when_the_oldest_makes_room() -> None:
    policy = learner()
    pool = OpponentPool(policy, interval=1, size=3)
    stories = []
    for number in range(6):
        with torch.no_grad():
            next(policy.parameters()).add_(1.0)
        pool.begin_rollout(number, policy)
        stories.append([one.parameter_hash() for one in pool.past])
    changes = [
        [place for place, (old, new) in enumerate(zip(*pair, strict=True)) if old != new]
        for pair in pairwise(stories[2:])
    ]
    assert [len(story) for story in stories] == [1, 2, 3, 3, 3, 3]
    assert changes == [[0], [1], [2]]
    other = OpponentPool(policy, interval=1, size=3)
    other.load_state_dict(pool.state_dict())
    for one in (pool, other):
        one.begin_rollout(6, policy)
    assert [p.parameter_hash() for p in other.past] == [p.parameter_hash() for p in pool.past]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_goes_on_to_the_bit_when_it_is_loaded_elsewhere(
    num_workers: int, tmp_path: Path
) -> None:
    def trainer() -> PPOTrainer:
        return PPOTrainer(
            None, Duel, num_envs=4, num_workers=num_workers, num_groups=2, horizon=8,
            minibatch_size=32, learner_share=0.5, self_play_interval=2, core="lstm", bptt_horizon=4,
        )  # fmt: skip

    one, other = trainer(), trainer()
    try:
        one.train(total_timesteps=64 * 5)
        saved = one.save(tmp_path / "saved")
        one.train(total_timesteps=64 * 9)
        other.load(saved)
        other.train(total_timesteps=64 * 9)
        assert other.digest() == one.digest()
    finally:
        one.env.close()
        other.env.close()


def test_opponents_come_from_files_when_they_are_named(tmp_path: Path) -> None:
    policy = learner()
    about = {"agent": {"hidden_size": 8}}
    record = PolicyStore(tmp_path).save(policy, "champion", 1, metadata=about)
    config = TrainerConfig(self_play={"learner_share": 0.5, "opponents": (record.uri,)})  # type: ignore[arg-type]  # reason: pydantic reads mappings
    with closing(make_vec_env(Duel, num_envs=1)) as env:
        (found,) = load_opponents(config, env)
        assert found.parameter_hash() == policy.parameter_hash()
        assert load_opponents(TrainerConfig(), env) == []


def test_a_pool_is_refused_when_its_fixed_opponents_are_others() -> None:
    saved = OpponentPool(learner(), [always(1)]).state_dict()
    OpponentPool(learner(), [always(2)]).load_state_dict(
        saved
    )  # equal weights: the same for all it knows
    with pytest.raises(StateError, match="other weights"):
        OpponentPool(learner(), [learner()]).load_state_dict(saved)
    with pytest.raises(StateError, match="are empty"):
        OpponentPool(learner()).load_state_dict({"fixed": [], "past": [], "num_past": 0})


def test_the_error_says_what_to_change_when_opponents_do_not_fit() -> None:
    other = make_policy(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
    with pytest.raises(ConfigError, match="an opponent is made for"):
        OpponentPool(learner(), [other])
    single = make_vec_env("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigError, match="1 of 1 agents of an environment would learn"):
        OpponentVecEnv(single, OpponentPool(learner()), 1)
    single.close()


def test_a_state_is_refused_when_its_opponents_do_not_fit() -> None:
    with closing(opened([always(1)])) as env:
        env.prepare_restore()
        env.reset(range(8), env.obs_spec.zeros(8))
        state = env.state_dict()
        groups = [{**state["opponents"]["groups"][0], "member": np.full(4, 7)}]
        for own in (
            {},
            {**state["opponents"], "groups": groups},
            {**state["opponents"], "steps": [1, 2]},
        ):
            with pytest.raises(StateError, match="the saved opponents do not fit"):
                env.load_state_dict({**state, "opponents": own})
