"""The traced actor: live weights, the bits of the policy, and refusals."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.actors.actor import EagerActor, make_actor
from metta.agent.actors.recorded_calls import record_calls
from metta.agent.actors.traced_actor import TracedActor
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import ActorError
from metta.train.train_config import AgentConfig

ROWS = 4
VECTOR, DISCRETE = spaces.Box(-1, 1, (5,)), spaces.Discrete(3)


class Head(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic, self.body = nn.Linear(5, 3), nn.Linear(5, 1), body
        self.gain = 1.0

    def forward(self, obs):
        features = self.body(self, obs)
        return self.actor(features), self.critic(features)


def policy_of(body) -> Policy:
    return Policy(Head(body), VECTOR, DISCRETE)


def act(actor, policy: Policy):
    source = np.random.Generator(np.random.PCG64(0))
    obs = {"obs": source.standard_normal((ROWS, 5)).astype(np.float32)}
    noise = source.standard_normal((ROWS, 3)).astype(np.float32)
    state = {k: v + 0.5 for k, v in policy.initial_state(ROWS).items()}
    return actor.act(obs, state, np.array([True, False, False, True]), None, noise)


def assert_equal(policy: Policy, actor: TracedActor) -> None:
    (found, state), (wanted, after) = act(actor, policy), act(EagerActor(policy), policy)
    assert found.keys() == wanted.keys() == actor.produces
    for left, right in ((found, wanted), (state, after)):
        assert all(torch.equal(left[key], right[key]) for key in right)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_bits_are_those_of_the_policy_when_weights_move(core):
    config = AgentConfig(hidden_size=8, core=core, normalize_observations=True)
    policy = make_policy(VECTOR, DISCRETE, config)
    actor = TracedActor(policy, ROWS)
    assert_equal(policy, actor)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3)
    assert_equal(policy, actor)  # before any refresh: weights are the live ones
    policy.obs_normalizer.update("obs", torch.randn(50, 5) + 3.0, torch.ones(50))
    actor.refresh(policy)
    assert_equal(policy, actor)


BODIES = {
    "in place": lambda m, obs: obs.clone().mul_(2.0).relu_(),
    "assigned": lambda m, obs: _assigned(obs),
    "parts": lambda m, obs: torch.cat([part * 2 for part in obs.split([2, 3], -1)], dim=-1),
    "shapes": lambda m, obs: obs.reshape(obs.shape[0], -1) * float(obs.size(1)) / len(obs),
    "indexed": lambda m, obs: obs[:, [0, 2, 1, 3, 4]] + obs[..., :1],
    "constants": lambda m, obs: obs * torch.linspace(0.0, 1.0, 5) + torch.ones_like(obs),
}


def _assigned(obs):
    result = torch.zeros_like(obs)
    result[:, 1:3] = obs[:, 1:3] * 2
    return result


@pytest.mark.parametrize("name", BODIES)
def test_bits_are_those_of_the_policy_when_modules_use_all_of_torch(name):
    policy = policy_of(BODIES[name])
    assert_equal(policy, TracedActor(policy, ROWS))


REFUSED = {
    "branch": (lambda m, obs: obs if obs.sum() > 0 else -obs, "depend on the values"),
    "number": (lambda m, obs: obs * obs.mean().item(), "depend on the values"),
    "numpy": (lambda m, obs: obs + float(obs.numpy().sum()), "depend on the values"),
    "random": (lambda m, obs: obs + torch.randn(5), "agree"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_told_when_a_module_cannot_be_traced(name):
    body, reason = REFUSED[name]
    with pytest.raises(ActorError, match=f"actor='traced' was asked for.*{reason}"):
        make_actor("traced", policy_of(body), ROWS)


def test_plain_numbers_are_followed_when_a_schedule_changes_them():
    policy = policy_of(lambda m, obs: obs * m.gain)
    actor = TracedActor(policy, ROWS)
    policy.module.gain = 3.0
    actor.refresh(policy)
    assert_equal(policy, actor)


def test_another_policy_acts_when_refreshed_with_it():
    actor = TracedActor(make_policy(VECTOR, DISCRETE), ROWS)
    other = make_policy(VECTOR, DISCRETE, AgentConfig(core="gru", hidden_size=4), seed=5)
    actor.refresh(other)
    assert_equal(other, actor)


def test_hooks_and_reduced_precision_are_refused_when_traced():
    policy = make_policy(VECTOR, DISCRETE)
    policy.precision = torch.bfloat16
    with pytest.raises(ActorError, match="full precision"):
        TracedActor(policy, ROWS)
    policy.precision = torch.float32
    policy.module.heads.register_forward_hook(lambda *_: None)
    with pytest.raises(ActorError, match="forward hooks"):
        TracedActor(policy, ROWS)


def test_other_numbers_of_rows_are_refused_when_acting():
    policy = make_policy(VECTOR, DISCRETE)
    with pytest.raises(ActorError, match="for 5 rows, but got 4"):
        act(TracedActor(policy, 5), policy)


def test_results_must_come_from_the_inputs_when_calls_are_recorded():
    made = torch.ones(1)
    with pytest.raises(ActorError, match="does not come from"):
        record_calls(nn.Identity(), lambda _: [made], [torch.ones(1)])
    with pytest.raises(ActorError, match="by name"):
        record_calls(nn.Identity(), lambda obs: [torch.add(obs, other=obs)], [torch.ones(1)])
    with pytest.raises(ActorError, match="indexed by tensors"):
        record_calls(nn.Identity(), lambda obs: [obs[obs.long(), obs.long()]], [torch.zeros(1, 1)])
