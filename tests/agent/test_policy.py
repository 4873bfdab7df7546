import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_cases import (
    BOX,
    CONFIGS,
    DISCRETE,
    IMAGE,
    VECTOR,
    N,
    T,
    observations,
    randoms,
    starts_inside,
    vectors,
)
from torch import nn
from user_modules import PACKS, Returns, Sees

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.train.train_config import AgentConfig


def test_policy_owns_the_deviation_when_a_module_returns_means():
    policy = Policy(Returns(PACKS["dict"], 2), VECTOR, BOX, AgentConfig(log_std_init=-1.0))
    output = policy(vectors())
    assert torch.equal(output.dist_params[..., 2:], torch.full((T, N, 2), -1.0))
    assert "log_std" in dict(policy.named_parameters())
    output.dist_params.sum().backward()
    assert policy.log_std.grad.tolist() == [T * N, T * N]


def test_module_owns_the_deviation_when_it_returns_both():
    module = Returns(PACKS["dict"], 4)
    policy = Policy(module, VECTOR, BOX)
    assert policy.log_std is None
    wanted = module.actor(vectors()["obs"])
    torch.testing.assert_close(policy(vectors()).dist_params, wanted, rtol=0, atol=1e-6)


def test_nesting_comes_back_when_spaces_are_nested():
    space = spaces.Dict(
        {
            "camera": spaces.Dict({"rgb": IMAGE, "depth": spaces.Box(0, 9, (2, 2))}),
            "pair": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (3,)))),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    policy = Policy(Sees(), space, DISCRETE)
    obs = {
        "camera/rgb": torch.randint(0, 256, (T, N, 36, 40, 3), dtype=torch.uint8),
        "camera/depth": randoms(T, N, 2, 2),
        "pair/0": torch.randint(0, 4, (T, N)),
        "pair/1": randoms(T, N, 3),
    }
    policy(obs)
    seen = policy.module.seen
    assert set(seen) == {"camera", "pair"}
    assert torch.equal(seen["camera"]["rgb"], obs["camera/rgb"].flatten(0, 1).float())
    assert torch.equal(seen["camera"]["depth"], obs["camera/depth"].flatten(0, 1))
    assert isinstance(seen["pair"], tuple)
    assert torch.equal(seen["pair"][0], obs["pair/0"].flatten())
    assert seen["pair"][0].dtype == torch.int64
    assert torch.equal(seen["pair"][1], obs["pair/1"].flatten(0, 1))


def test_module_sees_a_tensor_when_the_space_is_plain():
    policy = Policy(Sees(), VECTOR, DISCRETE)
    policy(vectors())
    assert torch.equal(policy.module.seen, vectors()["obs"].flatten(0, 1))


def test_pixels_arrive_as_floats_up_to_255_when_uint8():
    policy = Policy(Sees(), IMAGE, DISCRETE, AgentConfig(normalize_observations=True))
    policy({"obs": torch.full((T, N, 36, 40, 3), 255, dtype=torch.uint8)})
    assert policy.module.seen.dtype == torch.float32
    assert (policy.module.seen == 255).all()


@pytest.mark.parametrize(
    ("space", "values", "wanted"),
    [
        (spaces.Discrete(3, start=-5), [-5, -3], [0, 2]),
        (spaces.MultiDiscrete([2, 3], start=[7, 1]), [[7, 3], [8, 1]], [[0, 2], [1, 0]]),
        (spaces.Discrete(3), [0, 2], [0, 2]),
    ],
)
def test_discrete_values_count_from_zero_when_they_have_a_start(space, values, wanted):
    policy = Policy(Sees(), space, DISCRETE)
    policy({"obs": torch.tensor([values])})
    assert policy.module.seen.tolist() == wanted
    assert policy.module.seen.dtype == torch.int64


def test_discrete_starts_follow_when_the_policy_moves():
    policy = Policy(Sees(), spaces.MultiDiscrete([2, 3], start=[7, 1]), DISCRETE).to("meta")
    obs = torch.zeros(1, 2, 2, dtype=torch.int64, device="meta")
    assert policy({"obs": obs}).dist_params.shape == (1, 2, 3)


def test_built_in_agent_reads_discrete_values_when_they_have_a_start():
    plain = make_policy(spaces.Discrete(3), DISCRETE)
    shifted = make_policy(spaces.Discrete(3, start=-5), DISCRETE)
    values = torch.tensor([[0, 1, 2]])
    found = shifted({"obs": values - 5}).dist_params
    assert torch.equal(found, plain({"obs": values}).dist_params)
    assert not torch.equal(found[0, 0], found[0, 1])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_forward_changes_nothing_when_called(name, training):
    space, config = CONFIGS[name]
    policy = make_policy(space, BOX, config).train(training)
    obs, state, starts = observations(space), policy.initial_state(N), starts_inside()
    kept = copy.deepcopy((obs, state, starts))
    weights, generator = policy.parameter_hash(), torch.random.get_rng_state()
    policy(obs, state, starts).value.sum().backward()
    assert policy.parameter_hash() == weights
    assert torch.equal(torch.random.get_rng_state(), generator)
    torch.testing.assert_close((obs, state, starts), kept, rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_whole_rollout_equals_single_rows_when_forwarded(name):
    space, config = CONFIGS[name]
    policy = make_policy(space, BOX, config)
    obs, starts = observations(space), starts_inside()
    whole = policy(obs, policy.initial_state(N), starts)
    for row in range(N):
        state = policy.initial_state(1)
        for step in range(T):
            at = (slice(step, step + 1), slice(row, row + 1))
            output = policy({"obs": obs["obs"][at]}, state, starts[at])
            state = output.state
            torch.testing.assert_close(
                output.dist_params, whole.dist_params[at], rtol=1e-5, atol=1e-6
            )
            torch.testing.assert_close(output.value, whole.value[at], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_every_parameter_when_learning(name):
    space, config = CONFIGS[name]
    policy = make_policy(space, BOX, config)
    output = policy(observations(space), policy.initial_state(N), starts_inside())
    spec = policy.action_spec
    action = spec.sample(output.dist_params.detach(), randoms(T, N, 2), None)
    (spec.log_prob(output.dist_params, action, None).mean() + output.value.mean()).backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        # recurrent input biases and the like get their gradient from at least one entry
        assert parameter.grad.abs().max() > 0, parameter_name


def test_images_give_equal_features_when_channels_are_moved():
    last = make_policy(IMAGE, DISCRETE)
    first = make_policy(spaces.Box(0, 255, (3, 36, 40), np.uint8), DISCRETE)
    obs = observations(IMAGE)
    moved = {"obs": obs["obs"].movedim(-1, 2)}
    # another memory layout may sum in another order
    torch.testing.assert_close(
        first(moved).dist_params, last(obs).dist_params, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_are_independent_when_made(copied):
    policy = make_policy(VECTOR, DISCRETE, AgentConfig(normalize_observations=True))
    other = copied(policy)
    assert torch.equal(other(vectors()).dist_params, policy(vectors()).dist_params)
    before = policy.parameter_hash()
    other.double()
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert (policy.parameter_hash(), policy.dtype, other.dtype) == (
        before, torch.float32, torch.float64,
    )  # fmt: skip
    assert other(vectors()).dist_params.dtype == torch.float64


def test_single_row_is_taken_when_alone():
    policy = make_policy(VECTOR, spaces.MultiDiscrete([4]))
    output = policy({"obs": randoms(1, 1, 5)})
    assert output.dist_params.shape == (1, 1, 4)
    assert output.value.shape == (1, 1)


def test_parameterless_module_is_taken_when_given():
    class Uniform(nn.Module):
        def forward(self, obs):
            return obs[:, :3] * 0, obs[:, 0]

    policy = Policy(Uniform(), VECTOR, DISCRETE)
    assert policy.dtype == torch.float32
    assert not policy(vectors()).dist_params.any()
