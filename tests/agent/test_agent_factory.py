import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.factory import as_policy, make_policy
from metta.agent.policy import Policy
from metta.errors import PolicyError
from metta.ops.threads import threads_set
from metta.train.train_config import AgentConfig

VECTOR = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
DISCRETE, BOX = spaces.Discrete(2), spaces.Box(-1, 1, (2,))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, obs):
        return self.layer(obs), obs.sum(-1)


def test_weights_are_equal_when_seeds_are():
    first, second = (make_policy(VECTOR, DISCRETE, seed=4) for _ in range(2))
    assert first.parameter_hash() == second.parameter_hash()
    assert first.parameter_hash() != make_policy(VECTOR, DISCRETE, seed=5).parameter_hash()


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_weights_ignore_the_number_of_threads_when_made(core):
    """A run of one process begins with several, its ranks with one each."""
    hashes = set()
    for threads in (1, 2):
        with threads_set(threads):
            policy = make_policy(VECTOR, DISCRETE, AgentConfig(core=core, hidden_size=64), seed=4)
            hashes.add(policy.parameter_hash())
    assert len(hashes) == 1


def test_weights_ignore_the_global_generator_when_made():
    torch.manual_seed(0)
    first = make_policy(VECTOR, DISCRETE, seed=4)
    torch.manual_seed(1)
    torch.rand(10)
    assert make_policy(VECTOR, DISCRETE, seed=4).parameter_hash() == first.parameter_hash()


@pytest.mark.parametrize("config", [AgentConfig(), AgentConfig(core="lstm")], ids=["mlp", "lstm"])
def test_global_generators_are_untouched_when_a_policy_is_made(config):
    before, numpy_before = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    make_policy(VECTOR, DISCRETE, config, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    numpy_after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(numpy_before, numpy_after, strict=True))


@pytest.mark.parametrize(
    ("config", "space", "recurrent", "convolutional"),
    [
        (AgentConfig(), VECTOR, False, False),
        (AgentConfig(), IMAGE, False, True),
        (AgentConfig(name="mlp"), IMAGE, False, False),
        (AgentConfig(name="nature_cnn"), IMAGE, False, True),
        (AgentConfig(name="simple_cnn"), IMAGE, False, True),
        (AgentConfig(name="lstm"), VECTOR, True, False),
        (AgentConfig(name="gru"), IMAGE, True, True),
        (AgentConfig(name="nature_cnn", core="gru"), IMAGE, True, True),
    ],
)
def test_agent_is_what_its_name_says_when_made(config, space, recurrent, convolutional):
    policy = make_policy(space, DISCRETE, config)
    assert policy.is_recurrent == recurrent
    found = any(isinstance(part, nn.Conv2d) for part in policy.modules())
    assert found == convolutional


def test_default_agent_is_made_when_no_module_is_given():
    policy = as_policy(None, VECTOR, DISCRETE, AgentConfig(hidden_size=8), seed=3)
    wanted = make_policy(VECTOR, DISCRETE, AgentConfig(hidden_size=8), seed=3)
    assert policy.parameter_hash() == wanted.parameter_hash()


def test_module_is_wrapped_and_policy_kept_when_given():
    module = Pair()
    policy = as_policy(module, VECTOR, DISCRETE, AgentConfig(), seed=0)
    assert isinstance(policy, Policy)
    assert policy.module is module
    assert as_policy(policy, VECTOR, DISCRETE, AgentConfig(), seed=0) is policy


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (spaces.Box(-1, 1, (4,)), DISCRETE),
        (VECTOR, spaces.Discrete(5)),
        (VECTOR, spaces.Discrete(2, start=1)),
        (DISCRETE, DISCRETE),
    ],
)
def test_policy_is_refused_when_made_for_other_spaces(observation_space, action_space):
    policy = make_policy(VECTOR, DISCRETE)
    with pytest.raises(PolicyError, match="was made for"):
        as_policy(policy, observation_space, action_space, AgentConfig(), seed=0)


def test_policy_is_kept_when_only_bounds_of_observations_differ():
    policy = make_policy(VECTOR, BOX, AgentConfig(squash=True))
    wider = spaces.Box(-np.inf, np.inf, (3,))
    assert as_policy(policy, wider, BOX, AgentConfig(), seed=0) is policy


def test_policy_is_refused_when_bounds_of_actions_differ():
    policy = make_policy(VECTOR, BOX)
    with pytest.raises(PolicyError, match="was made for"):
        as_policy(policy, VECTOR, spaces.Box(-2, 2, (2,)), AgentConfig(), seed=0)
