"""An update from shards is the update from all of their rows."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.errors import RolloutError
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ranks import Ranks
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig

EXACT = 1e-12
"""Sums in another order, in float64."""
OPTIMIZER = OptimizerConfig(learning_rate=0.01, eps=1e-2)
"""With a small epsilon, the first steps of Adam divide noise by noise where a gradient is 0."""


def collected(core: Any = "none", rows: int = 8) -> tuple[Policy, dict[str, Tensor]]:
    """A float64 policy with normalisers and a rollout on CartPole, in segments of 4."""
    envs = make_vec_env("CartPole-v1", num_envs=rows, env_kwargs={"max_episode_steps": 12})
    config = AgentConfig(
        core=core, hidden_size=16, normalize_observations=True, normalize_returns=True
    )
    policy = make_policy(envs.observation_space, envs.action_space, config, seed=1).double()
    buffer = RolloutBuffer.for_env(policy, envs, 16, bptt_horizon=4)
    RolloutCollector(envs, policy, buffer, seed=8).collect()
    envs.close()
    columns = dict(buffer.columns)
    # some steps count for nothing, and of unequal number in the shards
    columns["valid"] = columns["valid"].clone()
    columns["valid"][3:6, 0] = columns["valid"][1, 1] = False
    return policy, columns


def learned(
    policy: Policy, columns: dict[str, Tensor], num_shards: int, losses: Any = (), **settings: Any
) -> tuple[Policy, dict[str, float]]:
    student = copy.deepcopy(policy)
    optimizer = make_optimizer(student.parameters(), OPTIMIZER)
    config = PPOConfig(**{"num_minibatches": 1, "update_epochs": 3, **settings})
    ppo = PPOOptimizer(student, optimizer, "cpu", config, ranks=Ranks(num_shards))
    stats = [ppo.update(columns, losses) for _ in range(2)][-1]
    return student, stats


def probability_loss(new_log_probs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    mean = new_log_probs.exp().mean()
    return mean, {"mean_probability": mean.detach()}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize_advantages": False},
        {"advantage_estimator": "vtrace"},
        {"gradient_accumulation": 2},
        {"target_kl": 1e-4},
        {"vf_clip_coef": 0.1, "ent_coef": 0.01},
    ],
    ids=lambda settings: "-".join(settings) or "defaults",
)
def test_an_update_equals_that_of_one_shard_to_rounding(core: Any, settings: Any) -> None:
    policy, columns = collected(core)
    whole, expected = learned(policy, columns, 1, **settings)
    parted, stats = learned(policy, columns, 4, **settings)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parted.state_dict()[name], tensor, rtol=EXACT, atol=EXACT)
    assert stats == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert whole.parameter_hash() != policy.parameter_hash()
    if "target_kl" in settings:
        assert stats["kl_stopped"] == 1.0


def test_custom_losses_and_their_metrics_are_those_of_all_rows() -> None:
    policy, columns = collected()
    columns["valid"] = torch.ones_like(columns["valid"])  # a loss of one's own counts every row
    losses = [CustomLoss(probability_loss, weight=0.5)]
    whole, expected = learned(policy, columns, 1, losses)
    parted, stats = learned(policy, columns, 4, losses)
    assert stats == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert any("mean_probability" in name for name in stats)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parted.state_dict()[name], tensor, rtol=EXACT, atol=EXACT)


def test_an_optimizer_of_torch_steps_alike() -> None:
    policy, columns = collected()
    found = []
    for num_shards in (1, 4):
        student = copy.deepcopy(policy)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
        config = PPOConfig(num_minibatches=1, update_epochs=3)
        PPOOptimizer(student, optimizer, "cpu", config, ranks=Ranks(num_shards)).update(columns)
        found.append(student)
    for one, other in zip(found[0].parameters(), found[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_a_minibatch_has_its_part_of_every_shard() -> None:
    seen: list[int] = []

    def count(new_values: Tensor) -> Tensor:
        seen.append(new_values.numel())
        return new_values.sum() * 0.0

    policy, columns = collected()
    _, stats = learned(policy, columns, 4, [count], num_minibatches=4, update_epochs=1)
    assert stats["optimizer_steps"] == 4.0
    assert seen == [8] * 32  # two updates x 4 minibatches x 4 shards of 2 rows x 16 steps


def test_layers_that_draw_numbers_draw_others_in_every_shard() -> None:
    drawn: list[Tensor] = []

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            drawn.append(torch.rand(3))
            found = self.layer(obs)
            return found[:, :2], found[:, 2]

    _, columns = collected()
    envs = make_vec_env("CartPole-v1")
    policy = Policy(Noisy(), envs.observation_space, envs.action_space)
    columns = {k: v.float() if v.dtype == torch.float64 else v for k, v in columns.items()}
    learned(policy, columns, 4, update_epochs=1)
    recent = [tuple(noise.tolist()) for noise in drawn[-4:]]
    assert len(set(recent)) == 4


def test_rows_that_do_not_split_into_shards_are_refused() -> None:
    policy, columns = collected(rows=6)
    with pytest.raises(RolloutError, match="6 rows, which do not split into 4 equal shards"):
        learned(policy, columns, 4)
