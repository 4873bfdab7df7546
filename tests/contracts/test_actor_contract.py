"""Every actor, through one suite: the actions of `Policy.forward` under the same noise."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.actor import (
    Actor,
    CActor,
    EagerActor,
    NumpyActor,
    TracedActor,
    check_actor,
    make_actor,
)
from metta.agent.actors.c_program import native_available
from metta.agent.factory import make_policy
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.train.train_config import AgentConfig

ROWS = 8
VECTOR = spaces.Box(-np.inf, np.inf, (5,))
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 3), np.uint8),
        "body": spaces.Dict(
            {"speed": spaces.Box(-9, 9, (3,)), "bits": spaces.MultiBinary(2)}
        ),
        "height": spaces.Box(-9, 9, ()),
    }
)  # fmt: skip
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (2,))
PARTS = spaces.MultiDiscrete([3, 2, 4])


class Case(NamedTuple):
    make: Callable[[], Policy]
    numpy: bool = True
    """Whether a NumPy actor exists."""
    c: bool = True
    """Whether a C actor exists, where there is a NumPy actor."""

    @property
    def kinds(self) -> list[str]:
        found = ["eager", "traced"]
        if self.numpy:
            found += ["numpy", "c"] if self.c else ["numpy"]
        return found


class Shared(nn.Module):
    """One trunk, two heads, as users write it."""

    def __init__(self, activation: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 16), activation, nn.Linear(16, 16), activation)
        self.actor, self.critic = nn.Linear(16, width), nn.Linear(16, 1)

    def forward(self, obs):
        features = self.trunk(obs)
        return self.actor(features), self.critic(features)


class Functional(nn.Module):
    """Nested observations, functional operations, a dict as output."""

    def __init__(self) -> None:
        super().__init__()
        self.camera, self.body, self.head = nn.Linear(12, 8), nn.Linear(6, 8), nn.Linear(16, 4)
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, obs):
        pixels = obs["camera"].flatten(1) / 255.0
        body = torch.cat(
            [obs["body"]["speed"], obs["body"]["bits"], obs["height"].unsqueeze(-1)], dim=1
        )
        camera = functional.relu(self.camera(pixels))
        hidden = torch.cat((camera, torch.tanh(self.body(body)) * self.gain), -1)
        return {"action_logits": self.head(hidden + 0.1 * hidden), "value": hidden[:, 0]}


def own(
    space: spaces.Space, action_space: spaces.Space, numpy: bool = True, c: bool = True, **settings
) -> Case:
    config = AgentConfig(**({"hidden_size": 16} | settings))
    return Case(lambda: _spread(make_policy(space, action_space, config)), numpy, c)


def user(
    module: Callable[[], nn.Module],
    action_space: spaces.Space,
    space: spaces.Space = VECTOR,
    c: bool = True,
    **settings,
) -> Case:
    def make() -> Policy:
        torch.manual_seed(0)
        return _spread(Policy(module(), space, action_space, AgentConfig(**settings)))

    return Case(make, c=c)


def _spread(policy: Policy) -> Policy:
    """Large weights, so that they decide the actions; and moments, where they are normalised."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 4
            parameter.normal_(0.0, 2.0 / fan_in**0.5, generator=generator)
    if policy.obs_normalizer is not None:
        for key in policy.obs_normalizer.keys:
            leaf = policy.obs_normalizer.leaf(key)
            values = 3.0 + 2.0 * torch.randn((50, *leaf.mean.shape), generator=generator)
            policy.obs_normalizer.update(key, values, torch.ones(50))
    return policy


CASES = {
    "mlp": own(VECTOR, DISCRETE),
    "mlp of one part": own(VECTOR, spaces.MultiDiscrete([4])),
    "parts and relu": own(VECTOR, PARTS, activation="relu"),
    "binary and elu": own(VECTOR, spaces.MultiBinary(3), activation="elu"),
    "box and silu": own(VECTOR, BOX, activation="silu"),
    "box with std of the state": own(VECTOR, BOX, std="state"),
    "squashed box": own(VECTOR, BOX, squash=True, share_encoder=True),
    "normalised": own(VECTOR, DISCRETE, normalize_observations=True, observation_clip=1.0),
    "nested": own(NESTED, DISCRETE, c=False, name="mlp", normalize_observations=True),
    "discrete observations": own(spaces.Discrete(3, start=2), DISCRETE, numpy=True),
    "bytes of codes": own(spaces.MultiDiscrete([3, 5, 2], dtype=np.uint8), DISCRETE),
    "codes with a start": own(
        spaces.MultiDiscrete([[3, 5], [2, 4]], start=[[1, 0], [2, -3]]), PARTS
    ),
    "pixels in rows": own(spaces.Box(0, 255, (4, 3), np.uint8), DISCRETE, name="mlp"),
    "bits": own(spaces.MultiBinary(6), BOX),
    "cnn": own(spaces.Box(0, 255, (6, 6, 3), np.uint8), DISCRETE, numpy=False),
    "lstm": own(VECTOR, DISCRETE, numpy=False, core="lstm"),
    "gru": own(VECTOR, BOX, numpy=False, core="gru"),
    "float64": Case(lambda: own(VECTOR, BOX).make().double(), numpy=False),
    "user relu": user(lambda: Shared(nn.ReLU(), 4), DISCRETE),
    "user tanh": user(lambda: Shared(nn.Tanh(), 9), PARTS),
    "user elu": user(lambda: Shared(nn.ELU(0.5), 4), DISCRETE),
    "user silu": user(lambda: Shared(nn.SiLU(), 4), BOX),
    "user sigmoid, std of the policy": user(lambda: Shared(nn.Sigmoid(), 2), BOX),
    "user functional": user(Functional, DISCRETE, NESTED, c=False, normalize_observations=True),
}


def require_native() -> None:
    if not native_available():
        pytest.skip("metta.agent._native was not built (no C compiler?)")


class Setup(NamedTuple):
    policy: Policy
    actor: Actor


PAIRS = [(name, kind) for name, case in CASES.items() for kind in case.kinds]
"""For what depends on the network: the numbers."""
REPRESENTATIVE = ("mlp", "box and silu", "normalised", "nested", "lstm", "gru", "user functional")
FEW = [pair for pair in PAIRS if pair[0] in REPRESENTATIVE]
"""For what depends on the actor: memory, state, weights, randomness."""

BUILDERS: dict[str, Callable[[Policy], Actor]] = {
    "eager": EagerActor,
    "traced": lambda policy: TracedActor(policy, ROWS),
    "numpy": lambda policy: NumpyActor(policy, ROWS),
    "c": CActor,
}


def name_of(pair: tuple[str, str]) -> str:
    return f"{pair[1]} {pair[0]}"


every_network = pytest.mark.parametrize(
    "shared_setup", PAIRS, indirect=True, ids=name_of, scope="module"
)


@pytest.fixture(scope="module", params=FEW, ids=name_of)
def shared_setup(request: pytest.FixtureRequest) -> Setup:
    name, kind = request.param
    policy = CASES[name].make()
    if kind == "c":
        require_native()
    return Setup(policy, BUILDERS[kind](policy))


@pytest.fixture
def setup(shared_setup: Setup) -> Iterator[Setup]:
    """Built once, because tracing takes time; each test gets the first weights."""
    policy, actor = shared_setup
    first = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    yield shared_setup
    policy.load_state_dict(first)
    policy.zero_grad()
    actor.refresh(policy)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def observations(policy: Policy, seed: int = 0) -> dict[str, np.ndarray]:
    source, obs = generator(seed), {}
    for leaf in policy.obs_spec.leaves:
        shape = (ROWS, *leaf.shape)
        if leaf.kind == "discrete":
            first, count = (np.reshape(v, leaf.shape) for v in (leaf.starts, leaf.categories))
            obs[leaf.key] = (first + source.integers(0, count, shape)).astype(leaf.dtype)
        elif leaf.dtype.kind == "f":
            obs[leaf.key] = (3.0 + 4.0 * source.standard_normal(shape)).astype(np.float32)
        else:
            top = 2 if leaf.kind == "binary" else 256
            obs[leaf.key] = source.integers(0, top, shape).astype(leaf.dtype)
    return obs


def noise_of(policy: Policy, seed: int = 0) -> np.ndarray:
    return draw_noise(policy.action_spec, generator(seed), 1, ROWS)[0]


def mask_of(policy: Policy, seed: int = 0) -> np.ndarray | None:
    size = policy.action_spec.mask_size
    return generator(seed).random((ROWS, size)) < 0.6 if size else None


def act(setup: Setup, seed: int, masked: bool = False, state: State | None = None):
    policy, actor = setup
    return actor.act(
        observations(policy, seed),
        policy.initial_state(ROWS) if state is None else state,
        generator(seed).random(ROWS) < 0.3,
        mask_of(policy, seed) if masked else None,
        noise_of(policy, seed),
    )


def expected(policy: Policy, seed: int, masked: bool = False, state: State | None = None):
    obs = {key: torch.from_numpy(leaf)[None] for key, leaf in observations(policy, seed).items()}
    starts = torch.from_numpy(generator(seed).random(ROWS) < 0.3)[None]
    with torch.no_grad():
        output = policy(obs, policy.initial_state(ROWS) if state is None else state, starts)
    mask = mask_of(policy, seed) if masked else None
    legal = None if mask is None else torch.from_numpy(mask)
    noise = torch.from_numpy(noise_of(policy, seed))
    action = policy.action_spec.sample(output.dist_params[0], noise, legal)
    return action, output


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype
    if wanted.dtype.is_floating_point:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, wanted)


@every_network
def test_actions_equal_the_policy_when_noise_is_the_same(setup):
    distinct = set()
    for seed, masked in itertools.product(range(6), (False, True)):
        found = act(setup, seed, masked)[0]["action"]
        assert_same(found, expected(setup.policy, seed, masked)[0])
        distinct |= {tuple(np.atleast_1d(row)) for row in found.numpy()}
    assert len(distinct) > 1


@every_network
def test_columns_are_what_the_actor_promises_when_acting(setup):
    policy, actor = setup
    produced, state = act(setup, 0)
    assert produced.keys() == actor.produces
    assert "action" in produced
    assert produced["action"].shape == (ROWS, *policy.action_spec.action_shape)
    _, output = expected(policy, 0)
    for name, wanted in (("value", output.value[0]), ("dist_params", output.dist_params[0])):
        if name in produced and actor.kind == "c":
            torch.testing.assert_close(produced[name], wanted, rtol=1e-5, atol=1e-5)
        elif name in produced:
            assert torch.equal(produced[name], wanted)
    assert state.keys() == output.state.keys()
    assert all(torch.equal(state[key], part) for key, part in output.state.items())


def test_state_is_carried_when_acting_goes_on(setup):
    state = wanted_state = setup.policy.initial_state(ROWS)
    for seed in range(4):
        produced, state = act(setup, seed, state=state)
        wanted, output = expected(setup.policy, seed, state=wanted_state)
        wanted_state = output.state
        assert_same(produced["action"], wanted)


def test_results_stay_when_the_actor_acts_again(setup):
    produced, state = act(setup, 0)
    kept = {name: column.clone() for name, column in (produced | state).items()}
    act(setup, 1)
    setup.actor.refresh(setup.policy)
    act(setup, 2)
    assert all(torch.equal(column, kept[name]) for name, column in (produced | state).items())


def test_inputs_stay_when_acting(setup):
    policy, actor = setup
    obs, mask, noise = observations(policy), mask_of(policy), noise_of(policy)
    state, starts = policy.initial_state(ROWS), np.zeros(ROWS, bool)
    actor.act(obs, state, starts, mask, noise)
    for key, leaf in observations(policy).items():
        np.testing.assert_array_equal(obs[key], leaf)
    np.testing.assert_array_equal(noise, noise_of(policy))
    if mask is not None:
        np.testing.assert_array_equal(mask, mask_of(policy))
    assert not any(part.any() for part in state.values())


def test_new_weights_act_when_refreshed(setup):
    policy, actor = setup
    before = act(setup, 0)[0]["action"]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(-1.5)
    actor.refresh(policy)
    after = act(setup, 0)[0]["action"]
    assert_same(after, expected(policy, 0)[0])
    assert not torch.equal(before, after)


def test_new_moments_act_when_refreshed(setup):
    policy, actor = setup
    if policy.obs_normalizer is None:
        return
    for key in policy.obs_normalizer.keys:
        leaf = policy.obs_normalizer.leaf(key)
        leaf.update(100.0 + torch.rand(500, *leaf.mean.shape), torch.ones(500))
    actor.refresh(policy)
    assert_same(act(setup, 0)[0]["action"], expected(policy, 0)[0])


def test_another_policy_acts_when_refreshed_with_it(setup):
    policy, actor = setup
    if policy.is_recurrent:
        return
    config = AgentConfig(hidden_size=4, name="mlp")
    other = make_policy(policy.observation_space, policy.action_space, config, seed=8)
    other = _spread(other.to(policy.dtype))
    actor.refresh(other)
    assert_same(act(Setup(other, actor), 0)[0]["action"], expected(other, 0)[0])
    actor.refresh(policy)
    assert_same(act(setup, 0)[0]["action"], expected(policy, 0)[0])


def test_no_global_randomness_is_drawn_when_acting(setup):
    before, numpy_before = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    act(setup, 0)
    setup.actor.refresh(setup.policy)
    check_actor(setup.actor, setup.policy, ROWS)
    assert torch.equal(torch.random.get_rng_state(), before)
    numpy_after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(numpy_before, numpy_after, strict=True))


def test_results_can_be_learned_from_when_used_with_gradients(setup):
    policy, _ = setup
    produced, state = act(setup, 0)
    obs = {key: torch.from_numpy(leaf)[None] for key, leaf in observations(policy).items()}
    output = policy(obs, state, torch.zeros(1, ROWS, dtype=torch.bool))
    loss = policy.action_spec.log_prob(output.dist_params, produced["action"][None], None).mean()
    loss.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in policy.parameters())


def test_single_row_acts_when_alone():
    for case in (CASES["mlp of one part"], CASES["box and silu"]):
        policy = case.make()
        obs = {key: leaf[:1] for key, leaf in observations(policy).items()}
        starts, noise = np.ones(1, bool), noise_of(policy)[:1]
        actions = [
            make_actor(kind, policy, 1).act(obs, {}, starts, None, noise)[0]["action"]
            for kind in ("eager", "traced", "numpy", "c")
        ]
        for found in actions[1:]:
            assert_same(found, actions[0])
        assert actions[0].shape == (1, *policy.action_spec.action_shape)


@pytest.mark.parametrize("name", CASES)
def test_auto_takes_the_fastest_when_several_exist(name):
    require_native()
    case = CASES[name]
    actor = make_actor("auto", case.make(), ROWS)
    assert actor.kind == case.kinds[-1]
    assert type(actor) is type(BUILDERS[actor.kind](case.make()))


def test_rows_act_alike_to_the_bit_when_others_stand_beside_them():
    require_native()
    for name in ("normalised", "bytes of codes", "parts and relu", "box and silu"):
        policy = CASES[name].make()
        actor = CActor(policy)
        together = actor._params(observations(policy))
        for size in (1, 2, 3, 5, 7):
            for first in range(0, ROWS, size):
                obs = {k: leaf[first : first + size] for k, leaf in observations(policy).items()}
                np.testing.assert_array_equal(actor._params(obs), together[first : first + size])
