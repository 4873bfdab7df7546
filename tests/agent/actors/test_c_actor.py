"""The C actor: what it takes, what it refuses, and that its numbers are the policy's."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.actors.actor import EagerActor, make_actor
from metta.agent.actors.c_actor import CActor
from metta.agent.actors.c_program import Chain, CNetwork, native_available
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import ActorError
from metta.spaces import ObsLeaf
from metta.train.train_config import AgentConfig

pytestmark = pytest.mark.skipif(
    os.environ.get("METTA_REQUIRE_NATIVE") != "1" and not native_available(),
    reason="metta.agent._native was not built and METTA_REQUIRE_NATIVE is not 1",
)

VECTOR, DISCRETE, BOX = spaces.Box(-1, 1, (5,)), spaces.Discrete(3), spaces.Box(-1, 1, (2,))
LEAF = ObsLeaf("obs", (), (1,), np.dtype(np.float32), "box")
ONE = np.ones((1, 1), np.float32)
KINDS = {
    1: torch.tanh, 2: torch.relu, 3: torch.sigmoid, 4: nn.functional.silu,
    5: lambda values: nn.functional.elu(values, 0.5),
}  # fmt: skip


def numbers() -> np.ndarray:
    parts = [np.linspace(-30, 30, 20001), np.linspace(-1e-3, 1e-3, 101), [88.5, -87.5, 0.0]]
    return np.concatenate(parts).astype(np.float32)[:, None]


def chain(*steps, one_hot: bool = False) -> Chain:
    def tensor(array):
        return None if array is None else torch.from_numpy(np.array(array))

    return Chain([(kind, a, tensor(w), tensor(b)) for kind, a, w, b in steps], one_hot)


def network(*steps, portable: bool = False, leaf: ObsLeaf = LEAF) -> CNetwork:
    return CNetwork(chain(*steps), leaf, None, 1.0, portable=portable)


@pytest.mark.parametrize("portable", [False, True], ids=["wide", "portable"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_exact_to_rounding_when_compared_with_torch(kind, portable):
    values = numbers()
    found = np.empty_like(values)
    network((0, 0.0, ONE, None), (kind, 0.5, None, None), portable=portable).forward(values, found)
    wanted = KINDS[kind](torch.from_numpy(values).double()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=4e-7, atol=4e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_special_numbers_go_where_torch_sends_them_when_activated(kind):
    values = np.array([[np.inf], [-np.inf], [np.nan], [1e30], [-1e30]], np.float32)
    found = np.empty_like(values)
    network((0, 0.0, ONE, None), (kind, 0.5, None, None)).forward(values, found)
    wanted = KINDS[kind](torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "?", "i1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_every_dtype_is_read_when_observations_have_it(dtype):
    leaf = ObsLeaf("obs", (), (3,), np.dtype(np.float32), "box")
    weight = np.array([[1.0, 10.0, 100.0]], np.float32)
    values = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]]).astype(dtype)
    found = np.empty((5, 1), np.float32)
    network((0, 0.0, weight, np.float32([0.5])), leaf=leaf).forward(values, found)
    assert found[:, 0].tolist() == [101.5, 110.5, 111.5, 0.5, 10.5]


def test_codes_out_of_range_set_nothing_when_observed():
    leaf = ObsLeaf("obs", (), (2,), np.dtype(np.int64), "discrete", (2, 3), (5, 0))
    weight = np.array([[1.0, 2.0, 4.0, 8.0, 16.0]], np.float32)
    made = CNetwork(chain((0, 0.0, weight, None), one_hot=True), leaf, None, 1.0)
    found = np.empty((4, 1), np.float32)
    made.forward(np.array([[5, 0], [6, 2], [4, 1], [7, 3]]), found)
    assert found[:, 0].tolist() == [5.0, 18.0, 8.0, 0.0]


def test_the_first_of_the_largest_is_drawn_when_several_are():
    leaf = ObsLeaf("obs", (), (4,), np.dtype(np.float32), "box")
    made = network((0, 0.0, np.eye(4, dtype=np.float32), None), leaf=leaf)
    obs = np.array([[0, 1, 1, 0], [2, 2, 2, 2], [0, 1, 9, 1], [-3, -2, -2, -5]], np.float32)
    noise, actions = np.zeros((4, 4), np.float32), np.empty(4, np.int64)
    noise[2, [1, 3]] = np.nan
    params = np.empty((4, 4), np.float32)
    made.sample(obs, actions, params, noise, None)
    np.testing.assert_array_equal(params, obs)
    assert actions.tolist() == torch.from_numpy(obs + noise).argmax(-1).tolist() == [1, 0, 1, 1]
    noise[:] = 0.0
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]], bool)
    made.sample(obs, actions, params, noise, mask)
    assert actions.tolist() == [2, 3, 2, 0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"obs": np.zeros((4, 3), np.float32)}, "obs has another shape"),
        ({"obs": np.zeros((2, 4), np.complex64)}, "obs has another dtype"),
        ({"obs": np.zeros((2, 4), np.float16)}, "obs has another dtype"),
        ({"obs": np.float32(0.0)}, "obs has another number of dimensions"),
        ({"obs": np.zeros((0, 3), np.float32)}, "obs has another shape"),
        ({"obs": np.zeros((4, 2), np.float32).T}, "obs has another layout"),
        ({"actions": np.zeros(2, np.int32)}, "actions has another dtype"),
        ({"actions": np.zeros(3, np.int64)}, "actions has another shape"),
        ({"noise": np.zeros((2, 3), np.float32)}, "noise has another shape"),
        ({"noise": np.zeros((2, 4))}, "noise has another dtype"),
        ({"params": np.zeros((2, 3), np.float32)}, "params has another shape"),
        ({"params": np.zeros(8, np.float32)}, "params has another number of dimensions"),
        ({"mask": np.zeros((2, 4), np.uint8)}, "mask has another dtype"),
        ({"mask": np.zeros((1, 4), bool)}, "mask has another shape"),
    ],
)
def test_arrays_are_refused_when_they_do_not_fit(change, problem):
    leaf = ObsLeaf("obs", (), (4,), np.dtype(np.float32), "box")
    made = network((0, 0.0, np.eye(4, dtype=np.float32), None), leaf=leaf)
    given = {
        "obs": np.zeros((2, 4), np.float32), "actions": np.zeros(2, np.int64),
        "noise": np.zeros((2, 4), np.float32), "params": np.zeros((2, 4), np.float32), "mask": None,
    }  # fmt: skip
    made.sample(**given)
    with pytest.raises(ValueError, match=problem):
        made.sample(**given | change)


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 0.0, np.ones((2, 3), np.float32), None)],
        [(0, 0.0, np.ones((2, 1)), None)],
        [(0, 0.0, ONE, np.ones(2, np.float32))],
        [(9, 0.0, None, None)],
        [(-1, 0.0, None, None)],
        [(0, 0.0, np.ones((0, 1), np.float32), None)],
        [(1, 0.0, None, None)] * 65,
    ],
    ids=["width", "dtype", "bias", "kind", "negative", "empty", "many"],
)
def test_networks_are_refused_when_they_make_no_chain(steps):
    with pytest.raises(ActorError):
        network(*steps)


class Joined(nn.Module):
    """Two branches that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(8, 3)

    def forward(self, obs):
        return self.head(torch.cat([self.left(obs), self.right(obs)], -1)), obs[:, 0]


class Constant(nn.Module):
    """No layer at all."""

    def forward(self, obs):
        return obs.tanh()[:, :3], obs[:, 0]


class Halved(nn.Module):
    """A layer that sees one of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 10), nn.Linear(5, 3)

    def forward(self, obs):
        return self.head(self.body(obs).chunk(2, -1)[1]), obs[:, 0]


REFUSED = {
    "parts": (lambda: Policy(Halved(), VECTOR, DISCRETE), "begin at the observation"),
    "branches": (lambda: Policy(Joined(), VECTOR, DISCRETE), "cat"),
    "slices": (lambda: Policy(Constant(), VECTOR, DISCRETE), "getitem"),
    "nested": (lambda: make_policy(spaces.Dict(a=VECTOR, b=BOX), DISCRETE), "one array"),
    "recurrent": (lambda: make_policy(VECTOR, DISCRETE, AgentConfig(core="gru")), "feed-forward"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_told_when_there_is_no_c_actor(name):
    make, reason = REFUSED[name]
    with pytest.raises(ActorError, match=f"actor='c' was asked for.*{reason}"):
        make_actor("c", make(), 4)


def test_auto_takes_numpy_when_there_is_no_chain():
    assert make_actor("auto", Policy(Joined(), VECTOR, DISCRETE), 4).kind == "numpy"
    assert make_actor("auto", Policy(Joined(), VECTOR, DISCRETE), 65).kind == "eager"


def test_old_weights_act_when_not_refreshed():
    policy = make_policy(VECTOR, BOX, AgentConfig(hidden_size=8, normalize_observations=True))
    actor, obs = CActor(policy), {"obs": np.ones((2, 5), np.float32)}
    before = actor._params(obs)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.5)
    policy.obs_normalizer.update("obs", torch.randn(50, 5) + 3.0, torch.ones(50))
    np.testing.assert_array_equal(actor._params(obs), before)
    actor.refresh(policy)
    with torch.no_grad():
        wanted = policy({"obs": torch.ones(1, 2, 5)}).dist_params[0]
    np.testing.assert_allclose(actor._params(obs), wanted, rtol=1e-5, atol=1e-5)


def test_activations_are_followed_when_a_schedule_changes_them():
    policy = make_policy(VECTOR, DISCRETE, AgentConfig(hidden_size=8, activation="elu"))
    actor = CActor(policy)
    for part in policy.modules():
        if isinstance(part, nn.ELU):
            part.alpha = 0.1
    actor.refresh(policy)
    assert actor._difference() < 1e-5


def test_refresh_is_refused_when_hooks_were_added():
    policy = make_policy(VECTOR, DISCRETE)
    actor = CActor(policy)
    policy.module.heads.actor.register_forward_hook(lambda *_: None)
    with pytest.raises(ActorError, match="forward hooks"):
        actor.refresh(policy)


def test_a_copy_of_the_policy_acts_when_refreshed_with_it():
    policy = make_policy(VECTOR, BOX)
    actor, other = CActor(policy), copy.deepcopy(policy)
    with torch.no_grad():
        other.module.heads.actor.bias.add_(1.0)
    actor.refresh(other)
    obs, noise = {"obs": np.ones((3, 5), np.float32)}, np.zeros((3, 2), np.float32)
    found = actor.act(obs, {}, np.zeros(3, bool), None, noise)[0]["action"]
    wanted = EagerActor(other).act(obs, {}, np.zeros(3, bool), None, noise)[0]["action"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_arrays_of_any_layout_act_when_given():
    policy = make_policy(VECTOR, DISCRETE)
    actor, wide = CActor(policy), np.ones((8, 10), np.float32)
    noise, mask = np.zeros((8, 6), np.float32), np.ones((8, 6), bool)
    found = actor.act(
        {"obs": wide[::2, ::2]}, {}, np.zeros(4, bool), mask[::2, ::2], noise[::2, ::2]
    )
    assert found[0]["action"].shape == (4,)


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("normalised", [False, True], ids=["raw", "normalised"])
def test_values_are_those_of_the_policy_when_rollouts_are_valued(share, normalised):
    config = AgentConfig(hidden_size=8, share_encoder=share, normalize_returns=normalised)
    policy = make_policy(VECTOR, DISCRETE, config)
    if normalised:
        policy.return_normalizer.update(5.0 + 3.0 * torch.randn(50), torch.ones(50))
    actor, obs = CActor(policy), np.random.default_rng(0).standard_normal((7, 5), np.float32)
    assert actor.value_source is actor
    with torch.no_grad():
        wanted = policy({"obs": torch.from_numpy(obs)[None]}).value[0]
    np.testing.assert_allclose(actor.values_of({"obs": obs}), wanted, rtol=1e-5, atol=1e-5)


class Summed(nn.Module):
    """Values that are no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(5, 3)

    def forward(self, obs):
        return self.actor(obs), obs.sum(-1)


def test_many_rows_act_eagerly_when_values_are_no_chain():
    policy = Policy(Summed(), VECTOR, DISCRETE)
    assert CActor(policy).value_source is None
    assert make_actor("auto", policy, 64).kind == "c"
    assert make_actor("auto", policy, 65).kind == "eager"
    assert make_actor("auto", make_policy(VECTOR, DISCRETE), 65).kind == "c"


def test_refresh_is_refused_when_values_are_wrong(monkeypatch):
    policy = make_policy(VECTOR, DISCRETE)
    actor = CActor(policy)
    monkeypatch.setattr(CActor, "values_of", lambda self, obs: np.full(16, 7.0, np.float32))
    actor.refresh(policy)  # nothing but tensors could have changed
    policy.module.register_buffer("added", torch.zeros(1), persistent=False)
    with pytest.raises(ActorError, match="does not agree"):
        actor.refresh(policy)


class Cancelling(nn.Module):
    """Large sums that cancel: their rounding depends on the order of the terms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.actor, self.critic = nn.Linear(5, 256), nn.Linear(256, 3), nn.Linear(256, 1)
        with torch.no_grad():
            self.body.weight[128:], self.body.bias[128:] = (
                self.body.weight[:128],
                self.body.bias[:128],
            )
            self.actor.weight[:, :128] = 3.0 * torch.randn(3, 128)
            self.actor.weight[:, 128:] = -self.actor.weight[:, :128]

    def forward(self, obs):
        features = torch.relu(self.body(obs))
        return self.actor(features), self.critic(features)


def test_a_sound_network_acts_when_its_weights_are_large_and_cancel():
    policy = Policy(Cancelling(), VECTOR, DISCRETE)
    actor = CActor(policy)
    recorded = actor.recorded
    actor.refresh(policy)
    assert actor.recorded is recorded


@pytest.mark.parametrize(("rounding", "num_traces"), [(5e-5, 0), (5e-3, 1)])
def test_a_trace_is_made_once_when_rounding_is_all_that_it_leaves(
    rounding, num_traces, monkeypatch
):
    policy, programs = Policy(Cancelling(), VECTOR, DISCRETE), []
    actor = CActor(policy)
    actor._rounding = 0.0
    monkeypatch.setattr(CActor, "_difference", lambda _: rounding)
    for _ in range(3):
        programs.append(actor.recorded)
        actor.refresh(policy)
    assert len({id(program) for program in [*programs, actor.recorded]}) == 1 + num_traces
    policy.module.changed = True
    actor.refresh(policy)
    assert (actor.recorded is programs[-1]) == (num_traces == 0)


@pytest.mark.parametrize("rounding", [0.0, 9e-3])
def test_refresh_is_refused_when_a_new_trace_differs_by_more_than_rounding(rounding, monkeypatch):
    policy = Policy(Cancelling(), VECTOR, DISCRETE)
    actor = CActor(policy)
    actor._rounding = rounding
    monkeypatch.setattr(CActor, "_difference", lambda _: 1.5e-2)
    with pytest.raises(ActorError, match="does not agree"):
        actor.refresh(policy)


def test_threads_get_their_own_results_when_they_share_a_network():
    shared = network((0, 0.0, np.ones((64, 1), np.float32), None), (1, 0.0, None, None))
    given = [np.full((20_000, 1), value, np.float32) for value in (0.25, -2.0, 3.0)]

    def run(values):
        found = np.empty((len(values), 64), np.float32)
        for _ in range(5):
            shared.forward(values, found)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, given))
    for values, part in zip(given, found, strict=True):
        np.testing.assert_allclose(part, np.tanh(values[0, 0]), rtol=1e-6)
