"""A policy acts with nothing but its file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium import spaces
from torch import Tensor, nn

import metta
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.toy import CorridorEnv
from metta.errors import EnvError, NonFiniteError, PolicyError, SpaceError
from metta.files import sha256_of
from metta.store.checkpoints.files import write_checkpoint
from metta.store.loaded_policy import LoadedPolicy, load_policy
from metta.store.policies import rebuilding
from metta.store.policies.file import read_weights, save_policy
from metta.train.train_config import AgentConfig

VECTOR = spaces.Box(-np.inf, np.inf, (3,))
NESTED = spaces.Dict(
    [
        ("z", spaces.Box(-1, 1, (2,))),
        ("a", spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4])])),
        ("bits", spaces.MultiBinary(3)),
        ("action_mask", spaces.MultiBinary(5)),
    ]
)
SMALL = AgentConfig(hidden_size=8)
AGENTS: dict[str, tuple[Any, Any, AgentConfig]] = {
    "mlp": (VECTOR, spaces.Discrete(4, start=2), SMALL),
    "normalised": (
        VECTOR,
        spaces.Discrete(2),
        AgentConfig(hidden_size=8, normalize_observations=True, normalize_returns=True),
    ),
    "cnn": (spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Discrete(3), SMALL),
    "lstm": (VECTOR, spaces.MultiDiscrete([2, 3], start=[1, 5]), AgentConfig(core="lstm")),
    "gru": (VECTOR, spaces.MultiBinary([2, 2]), AgentConfig(core="gru")),
    "box": (VECTOR, spaces.Box(np.float32([-1, -2]), np.float32([1, np.inf])), SMALL),
    "squashed": (
        VECTOR,
        spaces.Box(-5.0, 3.0, (2, 2), np.float64),
        AgentConfig(hidden_size=8, squash=True, std="state"),
    ),
    "nested": (NESTED, spaces.Discrete(5), SMALL),
}


def saved(path: Path, name: str = "mlp", metadata: Any = None, seed: int = 3) -> Path:
    observations, actions, config = AGENTS[name]
    policy = make_policy(observations, actions, config, seed=seed)
    return save_policy(path / f"{name}.safetensors", policy, metadata)


def samples(space: spaces.Space[Any], count: int) -> list[Any]:
    space.seed(0)
    found = [space.sample() for _ in range(count)]
    for one in found:
        if isinstance(one, dict):
            one["action_mask"][0] = 1  # a mask leaves a choice
    return found


def stacked(space: spaces.Space[Any], rows: list[Any]) -> Any:
    batch = gymnasium.vector.utils.create_empty_array(space, len(rows))
    return gymnasium.vector.utils.concatenate(space, rows, batch)


@pytest.mark.parametrize("name", AGENTS)
def test_a_policy_is_the_same_when_it_is_rebuilt_from_its_file_alone(
    tmp_path: Path, name: str
) -> None:
    observations, actions, config = AGENTS[name]
    original = make_policy(observations, actions, config, seed=3)
    agent = load_policy(saved(tmp_path, name))
    assert agent.policy.parameter_hash() == original.parameter_hash()
    assert agent.policy.architecture_hash() == original.architecture_hash()
    assert agent.policy.config == config
    assert agent.observation_space == observations
    assert agent.action_space == actions


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", AGENTS)
def test_actions_are_ready_for_the_environment_when_one_or_many_are_asked_for(
    tmp_path: Path, name: str, greedy: bool
) -> None:
    agent = load_policy(saved(tmp_path, name))
    rows = samples(agent.observation_space, 4)
    for observation in rows:
        assert agent.action_space.contains(agent.act(observation, greedy=greedy))
    agent.reset()
    actions = agent.act(stacked(agent.observation_space, rows), greedy=greedy)
    assert len(actions) == 4
    for action in actions:
        assert agent.action_space.contains(action)


@pytest.mark.parametrize("name", AGENTS)
def test_a_batch_is_its_rows_when_actions_are_greedy(tmp_path: Path, name: str) -> None:
    agent = load_policy(saved(tmp_path, name))
    rows, singles = samples(agent.observation_space, 5), []
    for observation in rows:
        agent.reset()
        singles.append(agent.act(observation, greedy=True))
    agent.reset()
    together = agent.act(stacked(agent.observation_space, rows), greedy=True)
    assert np.allclose(together, np.stack(singles), rtol=1e-4, atol=1e-4)  # other matrix products


def test_a_file_is_all_that_is_needed_when_a_new_process_loads_it(tmp_path: Path) -> None:
    path = saved(tmp_path)
    code = (
        "import metta\n"
        f"agent = metta.load_policy({str(path)!r})\n"
        "print(agent.act([0.1, 0.2, 0.3], greedy=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    wanted = metta.load_policy(path).act([0.1, 0.2, 0.3], greedy=True)
    assert done.stdout.strip() == str(wanted)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_policy_is_found_when_its_run_is_named(tmp_path: Path) -> None:
    for epoch, score in ((1, 5.0), (2, 1.0)):
        policy = make_policy(*AGENTS["mlp"], seed=epoch)
        about = {"epoch": epoch, "agent_step": epoch, "score": score}
        write_checkpoint(tmp_path / "first" / "checkpoints", {}, policy, about)
    found = {
        which: load_policy(f"first:{which}", runs=tmp_path) for which in ("latest", "best", "v1")
    }
    assert {which: agent.record.epoch for which, agent in found.items()} == {
        "latest": 2, "best": 1, "v1": 1
    }  # fmt: skip
    assert found["best"].metadata["score"] == 5.0
    path = tmp_path / "first"
    for uri in (path, path.as_uri(), "first", f"{path}:best", "first:1", f"{path}:v1"):
        agent = load_policy(uri, runs=tmp_path)
        assert agent.policy.parameter_hash() == found["best"].policy.parameter_hash()


def test_only_the_pinned_file_is_loaded_when_its_digest_is_given(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert load_policy(path, sha256=sha256_of(path)).policy is not None
    with pytest.raises(PolicyError, match="not the pinned file"):
        load_policy(path, sha256="0" * 64)


def test_actions_repeat_when_a_policy_is_loaded_again_or_seeded(tmp_path: Path) -> None:
    first, second = (load_policy(saved(tmp_path)) for _ in range(2))
    observation = np.zeros(3, np.float32)
    drawn = [int(first.act(observation)) for _ in range(40)]
    torch.manual_seed(1)
    assert drawn == [int(second.act(observation)) for _ in range(40)]
    assert len(set(drawn)) == 4
    second.reset()
    assert drawn != [int(second.act(observation)) for _ in range(40)]
    second.reset(seed=0)
    assert drawn == [int(second.act(observation)) for _ in range(40)]
    second.reset(seed=1)
    assert drawn != [int(second.act(observation)) for _ in range(40)]


def test_no_global_generator_is_used_when_a_policy_acts(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002 (it must not change)
    load_policy(path).act(np.zeros(3))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002 (as above)


def test_noise_is_that_of_the_generator_when_one_is_given(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path, "box"))
    one, other = (
        agent.act(np.zeros(3), generator=np.random.Generator(np.random.PCG64(7))) for _ in range(2)
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_the_state_inside_is_the_one_outside_when_an_episode_is_played(
    tmp_path: Path, name: str
) -> None:
    agent, other = load_policy(saved(tmp_path, name)), load_policy(saved(tmp_path, name))
    state = other.initial_state(1)
    for step, observation in enumerate(samples(VECTOR, 6)):
        inside = agent.act(observation)
        outside, state = other.act(
            observation, state, generator=metta.seeding.numpy_generator(0, "acting", index=step)
        )
        assert np.array_equal(inside, outside)
        assert all(torch.equal(agent._state[part], state[part]) for part in state)
    assert other._state is None
    agent.reset()
    assert agent._state is None


def test_rows_forget_when_an_episode_starts_in_them(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path, "lstm"))
    batch = np.stack(samples(VECTOR, 2))
    state = agent.act(batch, agent.initial_state(2))[1]
    kept = agent.act(batch, state)[1]
    half = agent.act(batch, state, starts=[False, True])[1]
    fresh = agent.act(batch, agent.initial_state(2))[1]
    for part in state:
        assert torch.equal(half[part][0], kept[part][0])
        assert torch.equal(half[part][1], fresh[part][1])
        assert not torch.equal(half[part][1], kept[part][1])


class Counting(nn.Module):
    """Chooses 1 where an episode starts, else 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def initial_state(self, num_rows: int) -> dict[str, Tensor]:
        return {"seen": torch.zeros(num_rows, 1)}

    def forward(self, obs: Tensor, state: dict[str, Tensor], starts: Tensor) -> dict[str, Any]:
        logits = torch.stack([~starts, starts], -1).float()
        return {"action_logits": logits, "value": obs[..., 0], "state": state}


def test_an_episode_starts_when_a_policy_acts_first_and_after_a_reset(tmp_path: Path) -> None:
    path = save_policy(tmp_path / "p", Policy(Counting(), VECTOR, spaces.Discrete(2)))
    agent, observation = load_policy(path, Counting()), np.zeros(3)
    told = [agent.act(observation, greedy=True) for _ in range(3)]
    agent.reset()
    told += [agent.act(observation, greedy=True) for _ in range(2)]
    told.append(agent.act(observation, greedy=True, starts=True))
    assert told == [1, 0, 0, 1, 0, 1]


def test_a_policy_error_says_what_to_do_when_rows_or_states_do_not_fit(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path, "lstm"))
    agent.act(np.zeros((2, 3)))
    with pytest.raises(PolicyError, match=r"3 observations follow 2; call reset\(\)"):
        agent.act(np.zeros((3, 3)))
    with pytest.raises(PolicyError, match="starts has 2 entries for 1 observations"):
        agent.act(np.zeros(3), starts=[True, False])
    with pytest.raises(PolicyError, match=r"begin with initial_state"):
        agent.act(np.zeros(3), agent.initial_state(2))
    with pytest.raises(PolicyError, match="a batch has one axis before it"):
        agent.act(np.zeros((1, 1, 3)))
    with pytest.raises(SpaceError, match="promises"):
        agent.act(np.zeros(4))


def test_illegal_actions_are_not_taken_when_there_is_a_mask(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path))
    only_last = np.array([0, 0, 0, 1])
    assert {int(agent.act(np.zeros(3), action_mask=only_last)) for _ in range(20)} == {5}
    masks = np.stack([only_last, only_last[::-1]])
    assert agent.act(np.zeros((2, 3)), action_mask=masks, greedy=True).tolist() == [5, 2]
    parts = load_policy(saved(tmp_path, "lstm"))
    mask = (np.array([[1, 0]] * 2), np.array([[0, 0, 1], [1, 0, 0]]))
    assert parts.act(np.zeros((2, 3)), action_mask=mask).tolist() == [[1, 7], [1, 5]]


def test_the_mask_in_the_observation_counts_when_none_is_given(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path, "nested"))
    observation = samples(NESTED, 1)[0] | {"action_mask": np.array([0, 0, 1, 0, 0], np.int8)}
    assert {int(agent.act(observation)) for _ in range(20)} == {2}
    assert agent.act(observation, action_mask=[[0, 0, 0, 0, 1]]) == 4


def test_an_error_is_raised_when_a_mask_is_unusable(tmp_path: Path) -> None:
    agent = load_policy(saved(tmp_path))
    with pytest.raises(EnvError, match="leaves no legal value"):
        agent.act(np.zeros(3), action_mask=np.zeros(4))
    with pytest.raises(PolicyError, match="no action mask for observation 1"):
        agent.act(np.zeros((2, 3)), action_mask=np.ones((1, 4)))
    with pytest.raises(PolicyError, match="cannot be masked"):
        load_policy(saved(tmp_path, "box")).act(np.zeros(3), action_mask=[1])


def test_an_error_is_raised_when_an_observation_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="NaN for this observation"):
        load_policy(saved(tmp_path)).act(np.full(3, np.nan))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.dropout(self.layer(obs))
        return out[..., :2], out[..., 2]


def test_weights_go_into_a_network_of_ones_own_when_it_is_given(tmp_path: Path) -> None:
    config = AgentConfig(normalize_observations=True)
    original = Policy(Net(), VECTOR, spaces.Discrete(2), config)
    path = save_policy(tmp_path / "mine", original)
    bare = load_policy(path, Net())
    assert bare.policy.parameter_hash() == original.parameter_hash()
    wrapped = Policy(Net(), VECTOR, spaces.Discrete(2), config)
    agent = load_policy(path, wrapped)
    assert agent.policy is wrapped
    states = [agent.act(np.ones(3), greedy=True) for _ in range(20)]
    assert len(set(states)) == 1  # acting is evaluation: no dropout
    assert wrapped.training
    with pytest.raises(PolicyError, match="pass policy=MyNetwork"):
        load_policy(path)


def test_the_type_returns_when_a_policy_was_cast_before_it_was_saved(tmp_path: Path) -> None:
    policy = make_policy(*AGENTS["normalised"]).double()
    agent = load_policy(save_policy(tmp_path / "double", policy))
    assert agent.policy.dtype == torch.float64
    assert agent.policy.parameter_hash() == policy.parameter_hash()


def rewritten(path: Path, change: Any) -> Path:
    """The same weights with another manifest, and no digest that would tell."""
    with safetensors.safe_open(path, framework="pt") as opened:
        manifest = json.loads(opened.metadata()["manifest"])
    manifest.pop("content_sha256")
    change(manifest)
    tensors = read_weights(path)
    safetensors.torch.save_file(tensors, path, metadata={"manifest": json.dumps(manifest)})
    return path


def first_version(manifest: dict[str, Any]) -> None:
    for part in ("spaces", "agent", "built_in"):
        del manifest[part]
    manifest["format_version"] = 1


def test_an_old_file_loads_into_a_policy_when_it_does_not_hold_its_spaces(tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path), first_version)
    with pytest.raises(PolicyError, match=r"does not hold the spaces .* pass policy="):
        load_policy(path)
    policy = make_policy(*AGENTS["mlp"], seed=8)
    assert load_policy(path, policy).policy is policy
    assert policy.parameter_hash() == make_policy(*AGENTS["mlp"], seed=3).parameter_hash()


LIES: dict[str, Any] = {
    "other actions": lambda m: m["spaces"]["action"].update(n=3),
    "another start": lambda m: m["spaces"]["action"].update(start=0),
    "other observations": lambda m: m["spaces"]["observation"].update(shape=[4]),
    "no space": lambda m: m["spaces"].update(action={"kind": "os.system"}),
    "a space more": lambda m: m["spaces"].update(other={}),
    "no spaces": lambda m: m.update(spaces={}),
    "a huge space": lambda m: m["spaces"]["observation"].update(shape=[2**23]),
    "many actions": lambda m: m["spaces"]["action"].update(n=2**40),
    "wide layers": lambda m: m["agent"].update(hidden_size=2**40),
    "many layers": lambda m: m["agent"].update(num_layers=2**30),
    "a name of code": lambda m: m["agent"].update(name="os.system"),
    "a setting more": lambda m: m["agent"].update(entry_point="os:system"),
    "settings that do not fit": lambda m: m["agent"].update(squash=True),
    "another agent": lambda m: m["agent"].update(core="gru"),
    "a network of pixels": lambda m: m["agent"].update(name="nature_cnn"),
    "not built in": lambda m: m.update(built_in=False),
}


@pytest.mark.parametrize("name", LIES)
def test_a_policy_error_is_raised_when_a_file_lies_about_its_policy(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(PolicyError):
        load_policy(rewritten(saved(tmp_path), LIES[name]))


@pytest.mark.parametrize("name", ["a huge space", "many actions", "wide layers", "many layers"])
def test_no_policy_is_built_when_a_file_asks_for_more_than_it_has_weights(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(rebuilding, "make_policy", lambda *given: built.append(given))
    with pytest.raises(PolicyError, match="does not fit"):
        load_policy(rewritten(saved(tmp_path), LIES[name]))
    assert built == []


def test_a_policy_error_is_raised_when_a_uri_is_none_that_stores_know(tmp_path: Path) -> None:
    for uri in ("wandb://me/project/policy:v3", "https://example.org/policy", str(tmp_path / "no")):
        with pytest.raises(PolicyError):
            load_policy(uri)
    with pytest.raises(PolicyError, match="has no policy; load it first"):
        LoadedPolicy(PolicyRecord("file:///a", "a", 1, 1))


def test_the_policy_plays_when_an_environment_asks_it(tmp_path: Path) -> None:
    env = CorridorEnv()
    policy = make_policy(env.observation_space, env.action_space, SMALL)
    agent = load_policy(save_policy(tmp_path / "corridor", policy))
    observation, _ = env.reset(seed=0)
    for _ in range(200):
        observation, _, terminated, truncated, _ = env.step(agent.act(observation))
        if terminated or truncated:
            agent.reset()
            break
