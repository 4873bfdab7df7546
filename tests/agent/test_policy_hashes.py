import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_cases import BOX, DISCRETE, VECTOR, vectors

from metta.agent.factory import make_policy
from metta.train.train_config import AgentConfig


def architecture(space=VECTOR, action_space=DISCRETE, seed: int = 0, **settings) -> str:
    return make_policy(space, action_space, AgentConfig(**settings), seed=seed).architecture_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 32},
        {"num_layers": 3},
        {"activation": "relu"},
        {"core": "lstm"},
        {"share_encoder": True},
        {"normalize_observations": True},
        {"space": spaces.Box(-1, 1, (6,))},
        {"space": spaces.Dict({"a": VECTOR})},
        {"action_space": spaces.Discrete(4)},
        {"action_space": spaces.Discrete(3, start=1)},
        {"action_space": spaces.MultiDiscrete([3])},
    ],
    ids=str,
)
def test_architecture_hash_changes_when_layers_or_spaces_do(change):
    assert architecture(**change) != architecture()


@pytest.mark.parametrize(
    "change",
    [{"squash": True}, {"std": "state"}, {"action_space": spaces.Box(-2, 1, (2,))}],
    ids=str,
)
def test_architecture_hash_changes_when_continuous_actions_do(change):
    assert architecture(**({"action_space": BOX} | change)) != architecture(action_space=BOX)


def test_architecture_hash_changes_when_one_bound_of_many_does():
    high = np.ones(2000, np.float32)
    other = high.copy()
    other[1000] = 2.0  # where printing the space would only show dots
    first, second = (spaces.Box(-high, bound, (2000,)) for bound in (high, other))
    assert architecture(action_space=first, hidden_size=1) != architecture(
        action_space=second, hidden_size=1
    )


def test_architecture_hash_changes_when_discrete_observations_shift():
    assert architecture(spaces.Discrete(3)) != architecture(spaces.Discrete(3, start=1))


def test_hashes_tell_weights_from_architecture_when_a_weight_changes():
    policy = make_policy(VECTOR, DISCRETE)
    same = make_policy(VECTOR, DISCRETE)
    assert (policy.architecture_hash(), policy.parameter_hash()) == (
        same.architecture_hash(), same.parameter_hash(),
    )  # fmt: skip
    with torch.no_grad():
        next(same.parameters())[0, 0] += 1e-6
    assert policy.architecture_hash() == same.architecture_hash()
    assert policy.parameter_hash() != same.parameter_hash()
    assert architecture(seed=1) == policy.architecture_hash()


def test_hashes_stay_when_a_policy_acts():
    policy = make_policy(VECTOR, BOX, AgentConfig(squash=True))
    before = policy.architecture_hash(), policy.parameter_hash()
    output = policy(vectors())
    policy.action_spec.entropy(output.dist_params, None)
    assert (policy.architecture_hash(), policy.parameter_hash()) == before
