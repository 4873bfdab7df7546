import copy

import pytest
import torch
from policy_cases import (
    BOX,
    CONFIGS,
    DISCRETE,
    VECTOR,
    N,
    T,
    observations,
    randoms,
    starts_inside,
    vectors,
)
from user_modules import PACKS, Returns

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.train.train_config import AgentConfig


class Dtypes(Returns):
    def forward(self, obs):
        params, value = super().forward(obs)
        self.ran_in = params.dtype
        return params.float(), value


def test_module_runs_in_bfloat16_and_results_are_float32_when_reduced():
    policy = Policy(Dtypes(lambda p, v: (p, v)), VECTOR, DISCRETE)
    policy.precision = torch.bfloat16
    output = policy(vectors())
    assert policy.module.ran_in == torch.bfloat16
    assert output.dist_params.dtype == output.value.dtype == torch.float32


@pytest.mark.parametrize("name", CONFIGS)
def test_own_networks_agree_to_bfloat16_when_reduced(name):
    space, config = CONFIGS[name]
    policy = make_policy(space, BOX, config)
    obs, starts = observations(space), starts_inside()
    exact = policy(obs, policy.initial_state(N), starts)
    policy.precision = torch.bfloat16
    output = policy(obs, policy.initial_state(N), starts)
    assert output.dist_params.dtype == output.value.dtype == torch.float32
    assert all(part.dtype == torch.float32 for part in output.state.values())
    # bfloat16 has 8 bits of mantissa: 0.4 %, through a handful of layers
    torch.testing.assert_close(output.value, exact.value, rtol=0.02, atol=0.02)
    assert not torch.equal(output.value, exact.value)
    output.value.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in policy.parameters())
    assert not torch.is_autocast_enabled("cpu")


def test_heads_are_float32_linear_maps_when_reduced():
    policy = make_policy(VECTOR, DISCRETE, AgentConfig(hidden_size=8))
    policy.precision = torch.bfloat16
    features = []
    policy.module.encoder.register_forward_hook(lambda *call: features.append(call[-1]))
    output = policy(vectors())
    assert features[0].dtype == torch.bfloat16
    wanted = policy.module.heads.actor(features[0].float()).unflatten(0, (T, N))
    assert torch.equal(output.dist_params, wanted)


@pytest.mark.parametrize("name", ["mlp", "normalised", "lstm"])
def test_float64_is_kept_from_end_to_end_when_the_policy_is_float64(name):
    space, config = CONFIGS[name]
    policy = make_policy(space, BOX, config).double()
    obs = observations(space)
    if policy.obs_normalizer is not None:
        columns = {"observations": obs["obs"], "returns": randoms(T, N)}
        policy.update_normalizers(columns | {"valid": torch.ones(T, N, dtype=torch.bool)})
    output = policy(obs, policy.initial_state(N), starts_inside())
    assert output.dist_params.dtype == output.value.dtype == torch.float64
    assert all(part.dtype == torch.float64 for part in output.state.values())
    single = copy.deepcopy(policy).float()
    found = single(obs, single.initial_state(N), starts_inside())
    torch.testing.assert_close(found.value.double(), output.value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found.value.double(), output.value)


def test_user_module_is_taken_when_float64():
    config = AgentConfig(normalize_observations=True, normalize_returns=True)
    policy = Policy(Returns(PACKS["dict"], 2).double(), VECTOR, BOX, config)
    assert policy.dtype == policy.log_std.dtype == torch.float64
    assert policy.obs_normalizer.leaf("obs").scale.dtype == torch.float64
    assert policy.return_normalizer.scale.dtype == torch.float64
    output = policy(vectors())
    assert output.dist_params.dtype == output.value.dtype == torch.float64
