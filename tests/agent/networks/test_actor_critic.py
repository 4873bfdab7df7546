import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.actions.action_spec import action_spec_of
from metta.agent.networks.actor_critic import ActorCritic, Heads, RecurrentActorCritic
from metta.spaces import obs_spec_of
from metta.train.train_config import AgentConfig

VECTOR = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(-1, 1, (2,))


def build(
    space: spaces.Space = VECTOR,
    action_space: spaces.Space = BOX,
    kind: type[nn.Module] = ActorCritic,
    **settings,
) -> nn.Module:
    torch.manual_seed(0)
    config = AgentConfig(**({"hidden_size": 8} | settings))
    return kind(obs_spec_of(space), action_spec_of(action_space), config)


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def assert_gain(layer: nn.Linear, gain: float) -> None:
    matrix = layer.weight.detach().double()
    # to the float32 that torch's QR works in
    wanted = gain**2 * torch.eye(len(matrix)).double()
    torch.testing.assert_close(matrix @ matrix.T, wanted, rtol=0, atol=1e-6)


def test_head_gains_are_small_for_the_actor_when_fresh():
    heads = build().heads
    assert_gain(heads.actor, 0.01)
    assert_gain(heads.critic, 1.0)
    assert not heads.actor.bias.any()


def test_encoders_are_separate_when_vectors_are_seen():
    module = build()
    shared = {id(p) for p in module.encoder.parameters()}
    assert module.critic_encoder is not None
    assert not shared & {id(p) for p in module.critic_encoder.parameters()}
    params, value = module(rows(4, 3))
    value.sum().backward()
    assert all(p.grad is None for p in module.encoder.parameters())
    params.sum().backward()
    assert all(p.grad is not None for p in module.encoder.parameters())


@pytest.mark.parametrize(
    ("space", "settings", "shares"),
    [
        (VECTOR, {"share_encoder": True}, True),
        (spaces.Box(0, 255, (6, 6, 3), np.uint8), {}, True),
        (spaces.Box(0, 255, (6, 6, 3), np.uint8), {"name": "mlp"}, False),
    ],
    ids=["asked for", "convolutions", "mlp over a grid"],
)
def test_encoder_is_shared_when_convolutional_or_asked_for(space, settings, shares):
    assert (build(space, **settings).critic_encoder is None) == shares


def test_deviation_is_a_free_parameter_when_configured():
    module = build(std="parameter", log_std_init=-0.5)
    params, value = module(rows(4, 3))
    assert params.shape == (4, 4)
    assert value.shape == (4,)
    assert torch.equal(params[:, 2:], torch.full((4, 2), -0.5))
    params.sum().backward()
    assert module.heads.log_std.grad.tolist() == [4.0, 4.0]


def test_deviation_starts_at_its_setting_when_the_network_gives_it():
    module = build(std="state", log_std_init=-0.5)
    assert module.heads.log_std is None
    first, second = module(rows(4, 3))[0][:, 2:], module(3 * rows(4, 3))[0][:, 2:]
    # a head of gain 0.01 over tanh features stays within a few hundredths of its bias
    assert (first + 0.5).abs().max() < 0.05
    assert not torch.equal(first, second)


def test_log_std_is_absent_when_actions_are_discrete():
    assert build(action_space=spaces.Discrete(3)).heads.log_std is None


@pytest.mark.parametrize("settings", [{"core": "lstm"}, {"name": "gru"}], ids=str)
def test_recurrent_module_equals_its_parts_when_run(settings):
    module = build(kind=RecurrentActorCritic, action_space=spaces.Discrete(3), **settings)
    obs = rows(5, 2, 3)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3, 1] = True
    output = module(obs, module.initial_state(2), starts)
    features = torch.stack([module.encoder({"obs": step}) for step in obs])
    hidden, state = module.core(features, module.initial_state(2), starts)
    params, value = module.heads(hidden, hidden)
    torch.testing.assert_close(output.dist_params, params, rtol=0, atol=1e-6)
    torch.testing.assert_close(output.value, value, rtol=0, atol=1e-6)
    torch.testing.assert_close(output.state, state, rtol=0, atol=1e-6)


def test_state_has_no_place_in_the_weights_when_recurrent():
    module = build(kind=RecurrentActorCritic, core="lstm")
    shapes = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    module(rows(2, 7, 3), module.initial_state(7), torch.zeros(2, 7, dtype=torch.bool))
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == shapes
    assert not any("state" in name for name in shapes)


def test_heads_compute_in_float32_when_the_trunk_is_bfloat16():
    torch.manual_seed(0)
    heads = Heads(8, action_spec_of(BOX), AgentConfig())
    features = torch.randn(5, 8).bfloat16()
    wanted = heads(features.float(), features.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = heads(features, features)
        assert torch.is_autocast_enabled("cpu")
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, exact)


def test_first_policy_is_nearly_uniform_when_fresh():
    module = build(action_space=spaces.Discrete(4), hidden_size=64)
    entropy = action_spec_of(spaces.Discrete(4)).entropy(module(rows(100, 3))[0], None)
    assert (math.log(4) - entropy).abs().max() < 1e-3  # logits are within a few hundredths of 0
