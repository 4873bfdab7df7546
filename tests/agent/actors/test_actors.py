import copy
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.actions.action_spec import action_spec_of, draw_noise
from metta.agent.actors.actor import CActor, EagerActor, check_actor, make_actor
from metta.agent.actors.check import random_obs, same_actions
from metta.agent.actors.graph_actor import GraphActor
from metta.agent.actors.numpy_actor import NumpyActor
from metta.agent.factory import make_policy
from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.policy import Policy
from metta.errors import ActorError, ConfigError
from metta.spaces import obs_spec_of
from metta.train.train_config import AgentConfig

ROWS = 8
VECTOR, DISCRETE, BOX = spaces.Box(-1, 1, (5,)), spaces.Discrete(3), spaces.Box(-1, 1, (2,))


class Head(nn.Module):
    """`body(module, obs)` gives the features of a linear policy."""

    def __init__(self, body=None, width: int = 3, layer: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(5, width), nn.Linear(5, 1)
        self.body, self.layer = body, layer

    def forward(self, obs):
        features = obs if self.body is None else self.body(self, obs)
        return self.actor(features), self.critic(features)


def policy_of(body=None, action_space: spaces.Space = DISCRETE, **parts) -> Policy:
    width = 3 if action_space is DISCRETE else 2
    return Policy(Head(body, width, **parts), VECTOR, action_space)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def act(actor, policy: Policy, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    obs = {"obs": (scale * generator(seed).standard_normal((ROWS, 5))).astype(np.float32)}
    noise = draw_noise(policy.action_spec, generator(seed), 1, ROWS)[0]
    return actor.act(obs, {}, np.zeros(ROWS, bool), None, noise)[0]["action"]


# --- make_actor ------------------------------------------------------------------------------------------


def branches(_, obs):
    return obs if obs.sum() > 0 else -obs


def noisy(_, obs):
    return obs + torch.randn(5)


def batch_dependent(module, obs):
    return module.layer(obs)


UNSUPPORTED = {
    "convolution": (
        lambda: make_policy(spaces.Box(0, 255, (3, 6, 6), np.uint8), DISCRETE), "contiguous|conv2d",
    ),
    "lstm": (lambda: make_policy(VECTOR, DISCRETE, AgentConfig(core="lstm")), "feed-forward"),
    "float64": (lambda: make_policy(VECTOR, DISCRETE).double(), "float32"),
    "branch on data": (lambda: policy_of(branches), "depend on the values"),
    "batch normalisation": (lambda: policy_of(batch_dependent, layer=nn.BatchNorm1d(5)), "batch_norm"),
    "own randomness": (lambda: policy_of(noisy), "agree"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_auto_falls_back_and_numpy_says_why_when_unsupported(name):
    make, reason = UNSUPPORTED[name]
    policy = make().train()
    own = isinstance(policy.module, ActorCritic | RecurrentActorCritic)
    assert make_actor("auto", policy, ROWS).kind == ("traced" if own else "eager")
    for kind in ("numpy", "c"):
        why = ".*" if name == "own randomness" and kind == "c" else f".*({reason}).*"
        wanted = f"actor='{kind}' was asked for{why}actor='auto'"
        with pytest.raises(ActorError, match=wanted):
            make_actor(kind, policy, ROWS)
    assert all(part.training for part in policy.modules())


def test_reduced_precision_has_no_numpy_actor_when_asked_for():
    policy = policy_of()
    policy.precision = torch.bfloat16
    assert isinstance(make_actor("auto", policy, ROWS), EagerActor)
    with pytest.raises(ActorError, match="reduced precision"):
        make_actor("numpy", policy, ROWS)


def test_eager_is_taken_when_asked_for():
    assert isinstance(make_actor("eager", policy_of(), ROWS), EagerActor)


def test_unknown_kind_is_refused_with_a_hint_when_misspelled():
    with pytest.raises(ConfigError, match=r"actor='nunpy'.*did you mean 'numpy'"):
        make_actor("nunpy", policy_of(), ROWS)


def test_modes_of_parts_stay_when_an_actor_is_made():
    policy = policy_of(lambda m, obs: m.layer(obs), layer=nn.Dropout(0.5).eval())
    for kind in ("auto", "traced", "numpy", "c"):
        assert make_actor(kind, policy, ROWS).kind in (kind, "c")
        assert policy.training
        assert not policy.module.layer.training


def test_actors_without_torch_share_their_checks_when_refreshed():
    for actor in (NumpyActor, CActor):
        assert issubclass(actor, GraphActor)
        assert actor.refresh is GraphActor.refresh


# --- check_actor -----------------------------------------------------------------------------------------


class Wrong(EagerActor):
    """Passes its result through `spoil`."""

    def __init__(self, policy: Policy, spoil) -> None:
        super().__init__(policy)
        self.spoil = spoil

    def act(self, obs, state, starts, mask, noise):
        produced, state = super().act(obs, state, starts, mask, noise)
        return produced | {"action": self.spoil(produced["action"], mask)}, state


class IgnoresMasks(EagerActor):
    def act(self, obs, state, starts, mask, noise):
        return super().act(obs, state, starts, None, noise)


class IgnoresStarts(EagerActor):
    def act(self, obs, state, starts, mask, noise):
        return super().act(obs, state, np.zeros_like(starts), mask, noise)


class KeepsState(EagerActor):
    def act(self, obs, state, starts, mask, noise):
        return super().act(obs, state, starts, mask, noise)[0], state


SPOILED = {
    "another action": lambda action, _: (action + 1) % 3,
    "one row": lambda action, _: action.clone().index_fill_(0, torch.tensor([3]), 0),
    "out of range": lambda action, _: action + 99,
    "negative": lambda action, _: action - 99,
    "extra axis": lambda action, _: action[:, None],
    "other dtype": lambda action, _: action.int(),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_actor_is_refused_when_its_actions_are_wrong(spoil):
    policy = policy_of()
    with pytest.raises(ActorError, match="disagrees"):
        check_actor(Wrong(policy, spoil), policy, ROWS)
    assert policy.training


@pytest.mark.parametrize(
    "spoil",
    [
        lambda action, _: action + 0.001,
        lambda action, _: action.double(),
        lambda action, _: action.clamp(-1, 1),
        lambda action, _: action * torch.nan,
    ],
    ids=["shifted", "float64", "clipped", "nan"],
)
def test_actor_is_refused_when_its_numbers_are_wrong(spoil):
    policy = policy_of(action_space=BOX)
    with pytest.raises(ActorError, match="disagrees"):
        check_actor(Wrong(policy, spoil), policy, ROWS)


def test_actor_is_refused_when_it_ignores_masks():
    policy = policy_of()
    with pytest.raises(ActorError, match="disagrees"):
        check_actor(IgnoresMasks(policy), policy, ROWS)


@pytest.mark.parametrize("kind", [IgnoresStarts, KeepsState])
def test_actor_is_refused_when_it_forgets_wrongly(kind):
    policy = make_policy(VECTOR, BOX, AgentConfig(core="gru", hidden_size=8))
    with torch.no_grad():
        policy.module.heads.actor.weight.mul_(100)
    check_actor(EagerActor(policy), policy, ROWS)
    with pytest.raises(ActorError, match="disagrees"):
        check_actor(kind(policy), policy, ROWS)


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored_when_an_actor_passes(training):
    policy = policy_of(lambda m, obs: m.layer(obs), layer=nn.Dropout(0.5)).train(training)
    check_actor(NumpyActor(policy, ROWS), policy, ROWS)
    assert (policy.training, policy.module.layer.training) == (training, training)


def test_ties_count_as_equal_when_rounding_decides():
    spec = action_spec_of(spaces.MultiDiscrete([2, 3]))
    params = torch.tensor([[0.0, 1e-6, 0.0, 1.0, 5.0]])
    noise = torch.zeros(1, 5)
    assert same_actions(spec, params, noise, None, torch.tensor([[1, 2]]))
    assert same_actions(spec, params, noise, None, torch.tensor([[0, 2]]))
    assert not same_actions(spec, params, noise, None, torch.tensor([[0, 1]]))
    illegal = torch.tensor([[False, True, True, True, True]])
    assert not same_actions(spec, params, noise, illegal, torch.tensor([[0, 2]]))


def test_random_observations_are_members_of_their_space_when_drawn():
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "small": spaces.Box(-128, 127, (2,), np.int8),
            "vector": spaces.Box(-np.inf, np.inf, (3,)),
            "scalar": spaces.Box(-np.inf, np.inf, ()),
            "choice": spaces.Discrete(3, start=-4),
            "parts": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
            "bits": spaces.MultiBinary(4),
        }
    )
    spec = obs_spec_of(space)
    obs = random_obs(spec, generator(), 200)
    for leaf in spec.leaves:
        assert obs[leaf.key].dtype == leaf.dtype
        assert all(space[leaf.key].contains(np.asarray(row)) for row in obs[leaf.key])
        assert len(np.unique(obs[leaf.key])) > 1
    assert np.abs(obs["vector"]).max() > 50  # some rows meet the clipping of normalisers
    assert (obs["image"].max(), obs["small"].max()) == (255, 127)


def test_actors_can_do_no_more_than_act_unless_they_say_so() -> None:
    actor = EagerActor(policy_of())
    assert (actor.buffer_writer, actor.value_source, actor.fused_actor) == (None, None, None)


# --- NumpyActor ------------------------------------------------------------------------------------------


def test_old_weights_act_when_not_refreshed():
    policy = policy_of(action_space=BOX)
    actor = NumpyActor(policy, ROWS)
    before = act(actor, policy)
    with torch.no_grad():
        policy.module.actor.weight.add_(1.0)
        policy.log_std.add_(1.0)
    assert torch.equal(act(actor, policy), before)
    actor.refresh(policy)
    after = act(actor, policy)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, act(EagerActor(policy), policy), rtol=1e-5, atol=1e-5)


def test_old_moments_act_when_not_refreshed():
    config = AgentConfig(normalize_observations=True, hidden_size=8)
    policy = make_policy(VECTOR, BOX, config)
    with torch.no_grad():
        policy.module.heads.actor.weight.mul_(100)
    actor = NumpyActor(policy, ROWS)
    before = act(actor, policy)
    policy.obs_normalizer.update("obs", 5.0 + torch.randn(50, 5), torch.ones(50))
    assert torch.equal(act(actor, policy), before)
    actor.refresh(policy)
    assert not torch.equal(act(actor, policy), before)


def test_live_policy_acts_when_the_actor_is_eager():
    policy = policy_of(action_space=BOX)
    actor = EagerActor(policy)
    before = act(actor, policy)
    with torch.no_grad():
        policy.module.actor.weight.add_(1.0)
    assert not torch.equal(act(actor, policy), before)


class Annealed(Head):
    """A temperature that is a plain number, as a schedule would set it."""

    temperature = 1.0

    def forward(self, obs):
        params, value = super().forward(obs)
        return params * self.temperature, value


@pytest.mark.parametrize("temperature", [0.5, 0.999])
def test_plain_numbers_are_followed_when_a_schedule_changes_them(temperature):
    policy = Policy(Annealed(width=2), VECTOR, BOX)
    actor = NumpyActor(policy, ROWS)
    before = act(actor, policy, scale=10.0)
    policy.module.temperature = temperature
    actor.refresh(policy)
    after = act(actor, policy, scale=10.0)
    assert not torch.equal(after, before)
    wanted = act(EagerActor(policy), policy, scale=10.0)
    torch.testing.assert_close(after, wanted, rtol=1e-5, atol=1e-5)


def test_refresh_is_refused_when_the_module_left_what_numpy_can_do():
    policy = policy_of(lambda m, obs: m.layer(obs), layer=nn.Tanh())
    actor = NumpyActor(policy, ROWS)
    policy.module.layer = nn.Softmax(-1)
    with pytest.raises(ActorError, match="softmax"):
        actor.refresh(policy)


def test_refresh_is_refused_when_the_policy_changes_its_type():
    policy = policy_of()
    actor = NumpyActor(policy, ROWS)
    policy.precision = torch.bfloat16
    with pytest.raises(ActorError, match="reduced precision"):
        actor.refresh(policy)
    policy.precision = torch.float32
    policy.double()
    with pytest.raises(ActorError, match="float32"):
        actor.refresh(policy)


def test_refresh_leaves_modes_alone_when_training():
    policy = policy_of(lambda m, obs: m.layer(obs), layer=nn.Dropout(0.5))
    NumpyActor(policy, ROWS).refresh(policy)
    assert policy.training
    assert policy.module.layer.training


def test_copy_of_the_policy_acts_when_refreshed_with_it():
    policy = policy_of(action_space=BOX)
    actor = NumpyActor(policy, ROWS)
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.module.actor.weight.add_(1.0)
    actor.refresh(other)
    wanted = act(EagerActor(other), other)
    torch.testing.assert_close(act(actor, other), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "c"])
def test_replaced_parameters_act_when_they_change_after_a_refresh(kind):
    policy = make_policy(VECTOR, BOX, AgentConfig(hidden_size=8))
    actor = make_actor(kind, policy, ROWS)
    policy.load_state_dict(copy.deepcopy(policy.state_dict()), assign=True)
    actor.refresh(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5)
    actor.refresh(policy)
    wanted = act(EagerActor(policy), policy)
    torch.testing.assert_close(act(actor, policy), wanted, rtol=1e-5, atol=1e-5)


def test_other_numbers_of_rows_are_refused_when_acting():
    policy = policy_of()
    actor = NumpyActor(policy, ROWS + 1)
    with pytest.raises(ActorError, match=f"for {ROWS + 1} rows, but got {ROWS}"):
        act(actor, policy)


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.SiLU(), nn.ELU(), nn.Tanh()], ids=str)
@pytest.mark.parametrize("scale", [1e3, 1e30, np.inf, np.nan])
def test_no_warning_is_given_when_inputs_overflow(layer, scale):
    policy = policy_of(lambda m, obs: m.layer(obs * 1e9), BOX, layer=layer)
    actor = NumpyActor(policy, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = act(actor, policy, scale=scale)
        actor.refresh(policy)
    wanted = act(EagerActor(policy), policy, scale=scale)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_refresh_does_not_blame_the_actor_when_weights_are_not_finite(poison):
    policy = policy_of(lambda m, obs: m.layer(obs), layer=nn.Linear(5, 5))
    actor = NumpyActor(policy, ROWS)
    with torch.no_grad():
        policy.module.layer.weight[0, 0] = poison
        policy.module.actor.weight[0, 0] = 1.0
    actor.refresh(policy)


def test_read_only_parameters_are_taken_when_a_network_ends_in_a_broadcast():
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

        def forward(self, obs):
            return self.logits.expand_as(obs[:, :3]), obs[:, 0]

    policy = Policy(Broadcast(), VECTOR, DISCRETE)
    actor = NumpyActor(policy, ROWS)
    assert torch.equal(act(actor, policy), act(EagerActor(policy), policy))


def test_caches_can_be_learned_from_when_a_module_filled_them_while_acting():
    class Caches(Head):
        cached = None

        def forward(self, obs):
            if self.cached is None:
                self.cached = torch.linspace(0.5, 1.5, 5)
            return super().forward(obs * self.cached)

    module = Caches()
    policy = Policy(module, VECTOR, DISCRETE)
    module.cached = None
    act(EagerActor(policy), policy)
    obs = torch.ones(1, ROWS, 5, requires_grad=True)
    policy({"obs": obs}).value.sum().backward()
    assert obs.grad.abs().max() > 0
