import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from metta.agent.actions.action_spec import action_spec_of
from metta.agent.actions.categorical import DiscreteSpec, MultiDiscreteSpec
from metta.errors import ConfigError, SpaceError


def test_numbers_are_known_when_logits_are_simple():
    spec = DiscreteSpec(3)
    params = torch.tensor([[math.log(1.0), math.log(2.0), math.log(5.0)]]).double()
    # the softmax is (1, 2, 5) / 8
    assert spec.log_prob(params, torch.tensor([1]), None).item() == pytest.approx(math.log(2 / 8))
    entropy = -sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))
    assert spec.entropy(params, None).item() == pytest.approx(entropy)
    assert spec.mode(params, None).item() == 2


def test_sample_is_the_argmax_of_logits_and_noise_when_both_matter():
    spec = DiscreteSpec(3)
    params = torch.tensor([[0.0, 1.0, 2.0]])
    assert spec.sample(params, torch.tensor([[0.0, 1.5, 0.0]]), None).item() == 1
    assert spec.sample(params, torch.tensor([[3.0, 1.5, 0.0]]), None).item() == 0
    legal = torch.tensor([[False, True, True]])
    assert spec.sample(params, torch.tensor([[3.0, 1.5, 0.0]]), legal).item() == 1


def test_parts_do_not_mix_when_sizes_differ():
    spec = MultiDiscreteSpec((2, 3), (0, 0), (2,), np.int64)
    params = torch.tensor([[0.0, 9.0, 1.0, 0.0, 0.5]])
    assert spec.mode(params, None).tolist() == [[1, 0]]
    legal = torch.tensor([[True, False, False, True, True]])
    assert spec.mode(params, legal).tolist() == [[0, 2]]


def test_starts_shift_each_part_when_sent():
    spec = action_spec_of(spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 10], [100, -1]]))
    sent = spec.to_env(np.array([[0, 1, 2, 1]]))
    np.testing.assert_array_equal(sent, [[[1, 11], [102, 0]]])


def test_start_is_added_when_a_discrete_action_is_sent():
    spec = action_spec_of(spaces.Discrete(3, start=-5))
    np.testing.assert_array_equal(spec.to_env(np.array([0, 2])), [-5, -3])


def test_numbers_stay_finite_when_a_network_masks_itself_with_infinity():
    spec = DiscreteSpec(3)
    params = torch.tensor([[1.0, -math.inf, 2.0]]).double().requires_grad_()
    log_prob, entropy = spec.log_prob_and_entropy(params, torch.tensor([2]), None)
    # softmax over (1, 2) alone
    share = 1 / (1 + math.exp(-1.0))
    wanted = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert entropy.item() == pytest.approx(wanted, abs=1e-12)
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), params)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0


def test_log_prob_has_gradient_when_learning():
    spec = MultiDiscreteSpec((2, 2), (0, 0), (2,), np.int64)
    params = torch.zeros(1, 4, requires_grad=True)
    spec.log_prob(params, torch.tensor([[0, 1]]), None).sum().backward()
    # d log p_a / d logit = 1[a] - p
    assert params.grad.tolist() == [[0.5, -0.5, -0.5, 0.5]]


def test_one_part_equals_discrete_when_logits_agree():
    one, plain = action_spec_of(spaces.MultiDiscrete([4])), action_spec_of(spaces.Discrete(4))
    generator = torch.Generator().manual_seed(0)
    params, noise = torch.randn(2, 10, 4, generator=generator).unbind()
    mask = torch.rand(10, 4, generator=generator) < 0.7
    action = plain.sample(params, noise, mask)
    assert torch.equal(one.sample(params, noise, mask), action[:, None])
    assert torch.equal(
        one.log_prob(params, action[:, None], mask), plain.log_prob(params, action, mask)
    )
    assert torch.equal(one.entropy(params, mask), plain.entropy(params, mask))


def test_unsupported_action_spaces_are_refused_when_asked_for():
    with pytest.raises(SpaceError, match="supported: Discrete"):
        action_spec_of(spaces.Dict({"a": spaces.Discrete(2)}))


def test_squash_is_refused_when_actions_are_discrete():
    with pytest.raises(ConfigError, match="squash=True needs a Box"):
        action_spec_of(spaces.Discrete(2), squash=True)
