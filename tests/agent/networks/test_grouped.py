"""A network for each group of agents: apart in their gradients, together in one policy."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import metta
from metta.agent.actors.actor import NumpyActor, make_actor
from metta.agent.factory import make_policy
from metta.agent.networks.grouped import choose_group, split_group_leaf
from metta.agent.policy import Policy
from metta.envs import make_vec_env
from metta.errors import ConfigError
from metta.rl.clean_trainer import Trainer
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim.simulation import run_episodes
from metta.spaces import obs_spec_of
from metta.store.policies.file import save_policy
from metta.train.agent_groups import AGENT_GROUPS, GROUP_KEY, MAX_AGENT_GROUPS
from metta.train.settings import apply_settings
from metta.train.train_config import AgentConfig, TrainingConfig

SEEN = spaces.Box(-1, 1, (3,), np.float32)
GRID = {"num_agents": 4, "view_radius": 2, "horizon": 12}


def grouped_space(num_groups: int = 2) -> spaces.Dict:
    return spaces.Dict([("obs", SEEN), (GROUP_KEY, spaces.Discrete(num_groups))])


def policy_of(num_groups: int = 2, **settings: Any) -> Policy:
    config = AgentConfig(hidden_size=8, **settings)
    return make_policy(grouped_space(num_groups), spaces.Discrete(3), config, seed=5)


def observed(group: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"obs": torch.rand(*group.shape, 3, generator=generator), GROUP_KEY: group}


KINDS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "shared": {"share_encoder": True},
    "lstm": {"core": "lstm"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stay_in_their_group_when_only_its_rows_have_a_loss(kind: str) -> None:
    policy = policy_of(**KINDS[kind])
    group = torch.tensor([0, 1, 1, 0]).expand(5, 4)
    output = policy(observed(group))
    own = group == 1
    loss = (output.dist_params.square().sum(-1) + output.value.square())[own].sum()
    loss.backward()
    sizes = {0: 0.0, 1: 0.0}
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        sizes[int(name.split(".")[2])] += float(parameter.grad.abs().sum())
    assert sizes[0] == 0.0
    assert sizes[1] > 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_its_groups_answer_when_groups_are_mixed(kind: str) -> None:
    policy = policy_of(**KINDS[kind])
    mixed = observed(torch.tensor([0, 1, 0]).expand(4, 3))
    found = policy(mixed)
    for number, rows in ((0, [0, 2]), (1, [1])):
        alone = policy({**mixed, GROUP_KEY: torch.full((4, 3), number)})
        for part, wanted in ((found.dist_params, alone.dist_params), (found.value, alone.value)):
            assert torch.equal(part[:, rows], wanted[:, rows])
        for name, state in found.state.items():
            assert torch.equal(state[rows], alone.state[name][rows])
    assert not torch.equal(found.value[0, 0], found.value[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_plain_policy_when_there_is_one_group(kind: str) -> None:
    config = AgentConfig(hidden_size=8, **KINDS[kind])
    plain = make_policy(SEEN, spaces.Discrete(3), config, seed=5)
    obs = observed(torch.zeros(4, 3, dtype=torch.int64))
    found, wanted = policy_of(1, **KINDS[kind])(obs), plain({"obs": obs["obs"]})
    assert torch.equal(found.dist_params, wanted.dist_params)
    assert torch.equal(found.value, wanted.value)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_training_is_that_of_the_plain_policy_when_one_group_has_all_agents(core: str) -> None:
    histories = []
    for extra in ({}, {AGENT_GROUPS: [4]}):
        with PPOTrainer(
            None,
            "grid/crowd",
            env_kwargs={**GRID, **extra},
            num_envs=2,
            horizon=16,
            minibatch_size=64,
            core=core,
            actor="eager",  # C acts for plain chains of layers only, and rounds otherwise
            hidden_size=8,
        ) as trainer:
            history = trainer.train(total_timesteps=256)
            histories.append({k: v for k, v in history.items() if "loss" in k or "return" in k})
    assert histories[0]["policy_loss"]
    assert str(histories[0]) == str(histories[1])


def test_the_numpy_actor_agrees_when_groups_act() -> None:
    actor = make_actor("numpy", policy_of(3), 6)  # compared with the policy when it is made
    assert isinstance(actor, NumpyActor)
    recurrent = policy_of(core="lstm")
    assert not isinstance(make_actor("auto", recurrent, 6), NumpyActor)


def test_the_network_compiles_to_one_graph_when_groups_are_mixed() -> None:
    policy = policy_of()
    nested = {"obs": torch.zeros(4, 3), GROUP_KEY: torch.tensor([0, 1, 1, 0])}
    exported = torch.export.export(policy.module, (nested,))
    for found, wanted in zip(exported.module()(nested), policy.module(nested), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_chosen_part_is_each_rows_own_when_parts_have_more_axes() -> None:
    own = torch.tensor([2, 0, 1])
    parts = [torch.full((3, 2), float(number)) for number in range(3)]
    assert choose_group(parts, own, is_vector=True).tolist() == [[2, 2], [0, 0], [1, 1]]
    flat = [part[:, 0] for part in parts]
    assert choose_group(flat, own, is_vector=False).tolist() == [2, 0, 1]


def test_a_leaf_is_no_group_when_it_is_elsewhere_or_of_another_kind() -> None:
    number = spaces.Discrete(2)
    for space in (
        spaces.Dict({GROUP_KEY: number}),
        spaces.Dict({"obs": SEEN, GROUP_KEY: SEEN}),
        spaces.Dict({"obs": SEEN, "inside": spaces.Dict({GROUP_KEY: number})}),
    ):
        spec = obs_spec_of(space)
        assert split_group_leaf(spec) == (spec, 0)
    rest, count = split_group_leaf(obs_spec_of(grouped_space(3)))
    assert ([leaf.key for leaf in rest.leaves], count) == (["obs"], 3)
    with pytest.raises(ConfigError, match="up to 256"):
        policy_of(MAX_AGENT_GROUPS + 1)


def test_a_saved_policy_acts_when_there_is_nothing_but_its_file(tmp_path: Path) -> None:
    policy = policy_of()
    agent = metta.load_policy(save_policy(tmp_path / "policy.safetensors", policy))
    assert agent.observation_space == grouped_space()
    seen = np.zeros((2, 3), np.float32)
    actions = agent.act({"obs": seen, GROUP_KEY: np.array([0, 1])}, greedy=True)
    assert actions.shape == (2,)
    one = agent.act({"obs": seen[0], GROUP_KEY: 1}, greedy=True)
    assert one == actions[1]
    assert agent.policy.parameter_hash() == policy.parameter_hash()


def test_a_run_is_evaluated_saved_and_loaded_when_its_agents_have_groups(tmp_path: Path) -> None:
    settings = {
        "env": "grid/crowd",
        "env_kwargs": {**GRID, AGENT_GROUPS: [1, 3]},
        "total_timesteps": 128,
        "num_envs": 2,
        "horizon": 16,
        "minibatch_size": 64,
        "eval_episodes": 2,
        "verbose": False,
    }
    config = apply_settings(TrainingConfig(), settings)
    with Trainer(config, run_dir=tmp_path / "run") as trainer:
        state = trainer.train()
    assert state.agent_step == 128
    assert state.eval_scores.avg_category_score is not None
    agent = metta.load_policy(tmp_path / "run" / "checkpoints" / "epoch_000001")
    assert agent.policy.obs_spec.leaves[-1].key == GROUP_KEY


class Opposites:
    """Both agents see nothing; the first is paid for action 0, the second for action 1."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.now = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def _see(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(1, np.float32) for name in self.possible_agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.now = list(self.possible_agents), 0
        return self._see(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.now += 1
        rewards = {n: float(actions[n] == i) for i, n in enumerate(self.possible_agents)}
        over = dict.fromkeys(self.possible_agents, self.now == 8)
        self.agents = [] if self.now == 8 else self.agents
        return self._see(), rewards, over, dict.fromkeys(over, False), {}

    def close(self) -> None:
        return None


@pytest.mark.parametrize("groups", [True, False], ids=["groups", "shared"])
def test_opposite_behaviour_is_learned_when_agents_have_groups_and_not_else(groups: bool) -> None:
    env_kwargs = {AGENT_GROUPS: [1, 1]} if groups else {}
    settings = {"num_envs": 8, "horizon": 32, "learning_rate": 1e-2, "hidden_size": 8}
    with PPOTrainer(None, Opposites, env_kwargs=env_kwargs, **settings) as trainer:
        trainer.train(total_timesteps=512 * 10)
    with closing(make_vec_env(Opposites, num_envs=8, env_kwargs=env_kwargs)) as env:
        scores = run_episodes(trainer.policy, env, 32, seed=3)
    # of 8 steps, a policy that all agents share is right in half: 4 an agent, whatever it does
    assert scores.mean > 7.5 if groups else scores.mean == pytest.approx(4.0, abs=0.5)
