import gymnasium
import pytest

from metta.agent.factory import make_policy
from metta.agent.metta_agent import MettaAgent, PolicyAgent
from metta.envs.factory import make_vec_env
from metta.errors import ConfigError, PolicyError
from metta.train.train_config import AgentConfig, TrainerConfig


@pytest.mark.parametrize(
    "env",
    [
        gymnasium.make("CartPole-v1"),
        gymnasium.make_vec("CartPole-v1", 2),
        make_vec_env("CartPole-v1", num_envs=2),
    ],
    ids=["single", "vector", "rows"],
)
def test_the_agent_is_that_of_make_policy_when_settings_are_equal(env) -> None:
    space = gymnasium.make("CartPole-v1")
    config = AgentConfig(core="lstm", hidden_size=8)
    made = make_policy(space.observation_space, space.action_space, config, seed=5)
    for system, agent in [
        (TrainerConfig(seed=5, device="cpu"), config),
        ({"seed": 5, "device": "cpu", "hostname": "x"}, {"core": "lstm", "hidden_size": 8}),
    ]:
        policy = MettaAgent(env, system, agent)
        assert isinstance(policy, PolicyAgent)
        assert policy.parameter_hash() == made.parameter_hash()
        assert policy.architecture_hash() == made.architecture_hash()
    env.close()


def test_defaults_count_when_only_the_environment_is_given() -> None:
    env = gymnasium.make("CartPole-v1")
    default = make_policy(env.observation_space, env.action_space, seed=TrainerConfig().seed)
    assert MettaAgent(env).parameter_hash() == default.parameter_hash()


def test_the_error_says_what_is_missing_when_arguments_are_wrong() -> None:
    with pytest.raises(PolicyError, match="str has no observation_space"):
        MettaAgent("CartPole-v1")
    with pytest.raises(ConfigError, match="hidden_sizes"):
        MettaAgent(gymnasium.make("CartPole-v1"), None, {"hidden_sizes": 8})
