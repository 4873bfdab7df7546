"""What users get wrong, and what they are told."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor, nn

from metta.envs.toy import CorridorEnv, CountdownEnv
from metta.errors import (
    ConfigError,
    EnvError,
    MettaWarning,
    PolicyError,
    RolloutError,
    StateError,
)
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim.simulation import run_episodes


def test_collection_is_refused_when_somebody_else_reset_the_environment() -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8, num_envs=2) as trainer:
        trainer.collect_rollouts()
        run_episodes(trainer.policy, trainer.env, 2, seed=1)
        with pytest.raises(EnvError, match="was reset elsewhere"):
            trainer.collect_rollouts()


def test_a_rollout_error_is_raised_when_an_environment_has_equal_shapes_and_other_bounds() -> None:
    class Wider(CorridorEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-9.0, 9.0, self.observation_space.shape, np.float32)

    with (
        PPOTrainer(None, CorridorEnv, horizon=8) as one,
        PPOTrainer(None, Wider, horizon=8) as two,
        pytest.raises(RolloutError, match="'CorridorEnv' with other spaces"),
    ):
        two.learn(one.collect_rollouts())


def test_a_rollout_error_is_raised_when_learn_gets_something_else_than_tensors() -> None:
    with (
        PPOTrainer(None, CorridorEnv, horizon=8) as trainer,
        pytest.raises(RolloutError, match=r"mapping of names to tensors, got {'obs': 'int'}"),
    ):
        trainer.learn({"obs": 1})  # type: ignore[dict-item]  # reason: the mistake under test


@pytest.mark.parametrize("policy", ["MyPolicy", nn.Linear], ids=["name", "class"])
def test_a_policy_error_is_raised_when_the_policy_is_no_module(policy: Any) -> None:
    with pytest.raises(PolicyError, match=r"nn\.Module, a Policy, (or )?None"):
        PPOTrainer(policy, CorridorEnv)


def test_a_config_error_is_raised_when_custom_losses_is_one_function() -> None:
    with pytest.raises(ConfigError, match=r"custom_losses=\[my_loss\]"):
        PPOTrainer(None, CorridorEnv, custom_losses=lambda new_values: new_values.mean())


def test_training_warns_when_no_episode_ever_ended() -> None:
    def endless() -> CountdownEnv:
        return CountdownEnv(10**9)

    quick = {"num_minibatches": 1, "update_epochs": 1, "learning_rate": 1e-9}
    with (
        PPOTrainer(None, endless, horizon=512, num_envs=20, **quick) as trainer,
        pytest.warns(MettaWarning, match="no episode ended in 10,240 steps") as caught,
    ):
        trainer.train(10_000)
    assert caught[0].filename == __file__


def test_updating_is_refused_when_a_parameter_was_frozen_after_its_optimizer_was_built() -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8) as trainer:
        data = trainer.collect_rollouts()
        next(trainer.policy.parameters()).requires_grad_(False)
        with pytest.raises(StateError, match="frozen after its optimizer"):
            trainer.learn(data)


class InAList(nn.Module):
    """Its layers are in a plain list, where torch does not find them."""

    def __init__(self) -> None:
        super().__init__()
        env = CorridorEnv()
        assert isinstance(env.action_space, spaces.Discrete)
        width = int(np.prod(env.observation_space.shape or ()))
        self.layers = [nn.Linear(width, int(env.action_space.n)), nn.Linear(width, 1)]

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = (layer(obs) for layer in self.layers)
        return logits, value


class Frozen(InAList):
    def __init__(self) -> None:
        super().__init__()
        self.found = nn.ModuleList(self.layers).requires_grad_(False)


@pytest.mark.parametrize(("kind", "count"), [(InAList, 0), (Frozen, 4)])
def test_a_policy_error_is_raised_when_nothing_can_be_trained(
    kind: type[nn.Module], count: int
) -> None:
    with pytest.raises(
        PolicyError, match=rf"{kind.__name__} has {count} parameters.*nn\.ModuleList"
    ):
        PPOTrainer(kind(), CorridorEnv, horizon=8)
