"""Policies on disk: saved by name, found by path, URI and run."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import CheckpointError, ConfigError, EnvError, PolicyError
from metta.files import sha256_of
from metta.store.checkpoints.files import write_checkpoint
from metta.store.policies.file import save_policy
from metta.store.policy_store import PolicyStore, spaces_of
from metta.store.rollout_file import save_rollout
from metta.train.train_config import AgentConfig

CONFIG = AgentConfig(hidden_size=8, core="lstm", normalize_observations=True)
AGENT = {"agent": dataclasses.asdict(CONFIG)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs)
        return out[..., :2], out[..., 2]


def policy_of(seed: int = 0, config: AgentConfig = CONFIG) -> Policy:
    return make_policy(*spaces_of(CorridorEnv), config, seed=seed)


def checkpoint(folder: Path, epoch: int, **metadata: Any) -> Path:
    about = {"epoch": epoch, "agent_step": epoch * 10, **AGENT, **metadata}
    return write_checkpoint(folder, {}, policy_of(epoch), about)


def test_a_policy_acts_again_when_it_is_loaded_by_its_uri(tmp_path: Path) -> None:
    store, policy = PolicyStore(tmp_path / "a b"), policy_of(3)
    saved = store.save(policy, "corridor", 120, 1200, AGENT | {"score": 2.5})
    assert saved.uri.startswith("file:///")
    assert saved.uri.endswith("/a%20b/corridor_000120.safetensors")
    assert (saved.name, saved.epoch, saved.agent_step) == ("corridor", 120, 1200)
    assert saved.policy is None
    loaded = PolicyStore(tmp_path).load(saved.uri, env=CorridorEnv)
    assert loaded == saved
    assert loaded.policy is not None
    assert loaded.policy.parameter_hash() == policy.parameter_hash()
    assert loaded.metadata["score"] == 2.5


@pytest.mark.parametrize(
    "env",
    [
        CorridorEnv,
        CorridorEnv(),
        make_vec_env(CorridorEnv, num_envs=2),
        gymnasium.vector.SyncVectorEnv([CorridorEnv]),
    ],
    ids=["factory", "env", "vec env", "vector env"],
)
def test_only_spaces_are_used_when_a_policy_is_rebuilt(tmp_path: Path, env: Any) -> None:
    record = PolicyStore(tmp_path).save(policy_of(1), "p", 1, metadata=AGENT)
    loaded = PolicyStore(tmp_path).load(record.uri, env)
    assert loaded.policy is not None
    assert loaded.policy.parameter_hash() == policy_of(1).parameter_hash()


def test_spaces_are_known_when_an_environment_is_named_by_its_id() -> None:
    observations, actions = spaces_of("CartPole-v1")
    assert observations.shape == (4,)
    assert actions == gymnasium.spaces.Discrete(2)
    with pytest.raises(EnvError, match="cannot make an environment of 3"):
        spaces_of(3)


def test_weights_go_into_the_policy_when_one_is_given(tmp_path: Path) -> None:
    saved = Policy(Net(), *spaces_of(CorridorEnv))
    record = PolicyStore(tmp_path).save(saved, "mine", 1)
    other = Policy(Net(), *spaces_of(CorridorEnv))
    assert PolicyStore(tmp_path).load(record.uri, policy=other).policy is other
    assert other.parameter_hash() == saved.parameter_hash()
    wrapped = PolicyStore(tmp_path).load(record.uri, CorridorEnv, Net()).policy
    assert wrapped is not None
    assert wrapped.parameter_hash() == saved.parameter_hash()


def test_a_policy_error_asks_for_the_network_when_the_file_does_not_describe_it(
    tmp_path: Path,
) -> None:
    record = PolicyStore(tmp_path).save(Policy(Net(), *spaces_of(CorridorEnv)), "mine", 1)
    for env in (CorridorEnv, None):
        with pytest.raises(PolicyError, match=r"load_policy\('.*mine_.*', MyNetwork"):
            PolicyStore(tmp_path).load(record.uri, env)


def test_an_own_network_has_the_settings_of_its_file_when_an_environment_is_given(
    tmp_path: Path,
) -> None:
    settings = AgentConfig(normalize_observations=True, normalize_returns=True)
    saved = Policy(Net(), *spaces_of(CorridorEnv), settings)
    record = PolicyStore(tmp_path).save(saved, "mine", 1)
    loaded = PolicyStore(tmp_path).load(record.uri, CorridorEnv, policy=Net()).policy
    assert loaded is not None
    assert loaded.config == settings
    assert loaded.parameter_hash() == saved.parameter_hash()


def test_the_spaces_in_the_file_are_taken_when_no_environment_is_given(tmp_path: Path) -> None:
    record = PolicyStore(tmp_path).save(policy_of(1), "p", 1)
    loaded = PolicyStore(tmp_path).load(record.uri).policy
    assert loaded is not None
    assert loaded.parameter_hash() == policy_of(1).parameter_hash()
    own = Policy(Net(), *spaces_of(CorridorEnv))
    record = PolicyStore(tmp_path).save(own, "own", 1)
    wrapped = PolicyStore(tmp_path).load(record.uri, policy=Net()).policy
    assert wrapped is not None
    assert wrapped.parameter_hash() == own.parameter_hash()


def test_a_policy_error_is_raised_when_the_spaces_do_not_fit(tmp_path: Path) -> None:
    record = PolicyStore(tmp_path).save(policy_of(), "p", 1, metadata=AGENT)
    with pytest.raises(PolicyError, match="does not fit this policy's layers or spaces") as raised:
        PolicyStore(tmp_path).load(record.uri, "CartPole-v1")
    assert "policy=" not in str(raised.value)


@pytest.mark.parametrize("agent", [{"name": "os.system"}, {"surprise": 1}, [1]])
def test_a_policy_error_is_raised_when_the_settings_name_no_agent(
    tmp_path: Path, agent: Any
) -> None:
    record = PolicyStore(tmp_path).save(policy_of(), "p", 1, metadata={"agent": agent})
    with pytest.raises(PolicyError, match="settings that fit no agent"):
        PolicyStore(tmp_path).load(record.uri, CorridorEnv)


def test_the_policy_of_a_checkpoint_is_found_when_any_of_its_paths_is_given(
    tmp_path: Path,
) -> None:
    path = checkpoint(tmp_path / "run" / "checkpoints", 120)
    ways = [path, path / "policy.safetensors", path.parent, path.parent.parent, path.as_uri()]
    for way in [*ways, *map(str, ways)]:
        loaded = PolicyStore(tmp_path).load(way, CorridorEnv)
        assert loaded.policy is not None
        assert loaded.policy.parameter_hash() == policy_of(120).parameter_hash()
        assert loaded.epoch == 120


def test_a_checkpoint_error_is_raised_when_the_policy_inside_was_changed(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 1)
    save_policy(path / "policy.safetensors", policy_of(2), {"epoch": 1, "agent_step": 10, **AGENT})
    for way in (path, path / "policy.safetensors"):
        with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
            PolicyStore(tmp_path).load(way, CorridorEnv)


def test_policies_of_both_kinds_are_listed_by_epoch_when_they_lie_together(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path)
    assert (store.list(), store.latest(), store.best()) == ([], None, None)
    store.save(policy_of(), "alone", 15, metadata={"score": 3.0})
    checkpoint(tmp_path, 20, score=1.0)
    checkpoint(tmp_path, 10, score=3.0)
    save_policy(tmp_path / "plain.safetensors", policy_of(), {"epoch": "x"})
    save_rollout(tmp_path / "rollout.safetensors", {"rewards": torch.zeros(1, 1)})
    (tmp_path / "torn.safetensors").write_text("torn")
    found = [(record.name, record.epoch) for record in store.list()]
    assert found == [("plain", 0), ("epoch_000010", 10), ("alone", 15), ("epoch_000020", 20)]
    latest, best = store.latest(), store.best()
    assert latest is not None
    assert latest.epoch == 20
    assert best is not None
    assert best.epoch == 15  # the later of two equals


@pytest.mark.parametrize(("selector", "epoch"), [("latest", 30), ("best", 20), ("v10", 10)])
def test_a_policy_is_found_by_its_run_when_the_root_holds_runs(
    tmp_path: Path, selector: str, epoch: int
) -> None:
    for number, score in ((10, 1.0), (20, 9.0), (30, 2.0)):
        checkpoint(tmp_path / "cart.pole-1" / "checkpoints", number, score=score)
    assert PolicyStore(tmp_path).find(f"cart.pole-1:{selector}").epoch == epoch


@pytest.mark.parametrize(("name", "epoch"), [("first/t01-s1", 20), ("first/t01-s1:v10", 10)])
def test_a_policy_is_found_by_the_run_of_a_sweep(tmp_path: Path, name: str, epoch: int) -> None:
    for number, score in ((10, 1.0), (20, 9.0)):
        checkpoint(tmp_path / "first" / "t01-s1" / "checkpoints", number, score=score)
    assert PolicyStore(tmp_path).find(name).epoch == epoch
    (tmp_path / "first" / "t01-s1" / "config.yaml").touch()
    with pytest.raises(PolicyError, match="did you mean 'first/t01-s1'"):
        PolicyStore(tmp_path).find(name.replace("01", "1"))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("run:v11", r"saved epochs are \[10\]"),
        ("run:best", "no policy there has a score"),
        ("empty:latest", "no policy is saved there"),
        ("other:latest", "neither 'other' nor .* exists"),
        ("../run:latest", "leads out of a folder by"),
        ("s3://me/project/policy:v3", "scheme 's3'"),
        ("nowhere", "no policy 'nowhere'"),
    ],
)
def test_a_policy_error_says_what_is_missing_when_nothing_is_found(
    tmp_path: Path, uri: str, message: str
) -> None:
    checkpoint(tmp_path / "run", 10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolicyError, match=message):
        PolicyStore(tmp_path).find(uri)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 200])
def test_a_config_error_is_raised_when_a_name_is_no_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"the policy's name .* is not a name"):
        PolicyStore(tmp_path).save(policy_of(), name, 1)
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_error_is_raised_when_a_policy_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        PolicyStore(tmp_path / "file").save(policy_of(), "p", 1)


def test_the_best_come_first_when_some_are_asked_for(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path)
    scores = {1: 2.0, 2: None, 3: 5.0, 4: 2.0, 5: float("nan"), 6: -1.0}
    for epoch, score in scores.items():
        store.save(policy_of(), "p", epoch, metadata={"score": score})
    assert [record.epoch for record in store.top(3)] == [3, 4, 1]  # the newer of equals first
    assert [record.epoch for record in store.top(99)] == [3, 4, 1, 6]
    assert [list(store.top(count)) for count in (0, -1)] == [[], []]
    assert store.top(1)[0] == store.best()


def test_only_the_pinned_policy_is_found_when_its_digest_is_given(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 120)
    digest = sha256_of(path / "policy.safetensors")
    store = PolicyStore(tmp_path)
    assert store.find(path, sha256=digest).epoch == 120
    assert store.load(path, CorridorEnv, sha256=digest).policy is not None
    for look in (lambda wrong: store.find(path, sha256=wrong),
                 lambda wrong: store.load(path, CorridorEnv, sha256=wrong)):  # fmt: skip
        with pytest.raises(PolicyError, match="not the pinned file"):
            look("0" * 64)


@pytest.mark.parametrize(
    "agent",
    [
        {"hidden_size": 2**62},
        {"hidden_size": 10**5},
        {"hidden_size": 100, "num_layers": 2},
        {"num_layers": 10**9},
        {"hidden_size": 300, "core": "lstm"},
    ],
)
def test_nothing_large_is_built_when_the_settings_of_a_file_ask_for_it(
    tmp_path: Path, agent: dict[str, Any]
) -> None:
    record = PolicyStore(tmp_path).save(policy_of(), "p", 1, metadata={"agent": agent})
    with pytest.raises(PolicyError, match=r"holds \d+ numbers, fewer than its agent has"):
        PolicyStore(tmp_path).load(record.uri, CorridorEnv)


@pytest.mark.parametrize("place", ["epoch", "folder", "file"])
def test_a_policy_error_is_raised_when_a_run_leads_out_of_itself(
    tmp_path: Path, place: str
) -> None:
    outside = checkpoint(tmp_path / "elsewhere", 10)
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    if place == "folder":
        (run / "checkpoints").symlink_to(outside.parent)
    elif place == "epoch":
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / outside.name).symlink_to(outside)
    else:
        save_policy(outside.parent / "p.safetensors", policy_of(), AGENT)
        (run / "p.safetensors").symlink_to(outside.parent / "p.safetensors")
    for way in ("run:latest", str(run)):
        with pytest.raises(PolicyError):
            PolicyStore(tmp_path / "runs").find(way)


def test_a_policy_error_is_raised_when_a_name_is_longer_than_files_have(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="names no policy") as caught:
        PolicyStore(tmp_path).find("x" * 5000)
    assert len(str(caught.value)) < 500


def test_a_record_is_found_again_when_the_folder_was_named_with_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = checkpoint(Path("../there"), 3)
    save_policy("../there/p.safetensors", policy_of(), AGENT)
    store = PolicyStore("../there")
    assert ".." not in store.root.parts
    uris = [store.find(path).uri, store.find("../there/p.safetensors").uri]
    uris += [record.uri for record in store.list()]
    for uri in uris:
        assert ".." not in uri
        assert store.load(uri, CorridorEnv).policy is not None
