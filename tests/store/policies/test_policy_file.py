import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from gymnasium import spaces

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv
from metta.errors import NonFiniteError, PolicyError
from metta.files import sha256_of
from metta.rl.learn.optimizer import make_optimizer
from metta.store.policies import file as policy_file
from metta.store.policies.file import (
    freeze_policy,
    load_weights,
    open_policy,
    read_weights,
    save_policy,
)
from metta.store.rollout_file import save_rollout
from metta.train.train_config import AgentConfig, OptimizerConfig

AGENTS = {
    "mlp": AgentConfig(hidden_size=8),
    "lstm": AgentConfig(hidden_size=8, core="lstm"),
    "normalised": AgentConfig(hidden_size=8, normalize_observations=True, normalize_returns=True),
}


def policy_of(config: AgentConfig, seed: int = 0, env: Any = CorridorEnv) -> Policy:
    made = env()
    return make_policy(made.observation_space, made.action_space, config, seed=seed)


def header_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as opened:
        return json.loads(opened.metadata()["manifest"])


@pytest.mark.parametrize("name", AGENTS)
def test_every_bit_returns_when_a_policy_is_saved(tmp_path: Path, name: str) -> None:
    first, second = policy_of(AGENTS[name], seed=1), policy_of(AGENTS[name], seed=2)
    assert first.parameter_hash() != second.parameter_hash()
    load_weights(save_policy(tmp_path / "policy.safetensors", first), second)
    assert first.parameter_hash() == second.parameter_hash()


def test_the_scale_of_values_returns_when_moments_were_learned(tmp_path: Path) -> None:
    first, second = policy_of(AGENTS["normalised"]), policy_of(AGENTS["normalised"])
    observations = torch.randn(4, 3, 8) * 5 + 2
    columns = {
        "observations": observations,
        "returns": torch.randn(4, 3) * 50,
        "valid": torch.ones(4, 3, dtype=torch.bool),
    }
    first.update_normalizers(columns)
    load_weights(save_policy(tmp_path / "policy", first), second)
    inputs = {"obs": observations}
    with torch.no_grad():
        assert torch.equal(first(inputs).value, second(inputs).value)
        assert torch.equal(first(inputs).dist_params, second(inputs).dist_params)


def test_metadata_returns_when_it_is_plain_data(tmp_path: Path) -> None:
    metadata = {"env": "CartPole-v1", "score": None, "config": {"lr": [1e-3]}}
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"]), metadata)
    assert load_weights(path, policy_of(AGENTS["mlp"])) == metadata


def test_the_manifest_describes_the_policy_when_it_is_saved(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    manifest = header_of(save_policy(tmp_path / "policy", policy))
    assert manifest["format"] == "metta-policy"
    assert manifest["policy_hash"] == policy.parameter_hash()
    assert manifest["policy_architecture"] == policy.architecture_hash()
    assert manifest["action_space"] == "Discrete(2)"
    assert manifest["metadata"] == {}
    assert manifest["spaces"]["action"] == {
        "kind": "Discrete", "n": 2, "start": 0, "dtype": "int64"
    }  # fmt: skip
    assert manifest["agent"]["hidden_size"] == 8
    assert manifest["built_in"] is True


def test_the_optimizer_still_holds_the_weights_when_they_are_loaded(tmp_path: Path) -> None:
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"], seed=1))
    policy = policy_of(AGENTS["mlp"], seed=2)
    optimizer = make_optimizer(policy.parameters(), OptimizerConfig())
    load_weights(path, policy)
    assert torch.equal(optimizer.flat, torch.cat([p.flatten() for p in policy.parameters()]))


@pytest.mark.parametrize(
    "other",
    [
        lambda: policy_of(AgentConfig(hidden_size=16)),
        lambda: policy_of(AGENTS["lstm"]),
        lambda: policy_of(AGENTS["mlp"], env=ContinuousTargetEnv),
        lambda: make_policy(
            spaces.Box(0.0, 1.0, (8,)), spaces.Discrete(3), AGENTS["mlp"]
        ),
    ],
)  # fmt: skip
def test_a_policy_error_says_so_when_the_architecture_differs(tmp_path: Path, other: Any) -> None:
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"]))
    policy = other()
    before = policy.parameter_hash()
    with pytest.raises(PolicyError, match="does not fit this policy's layers or spaces"):
        load_weights(path, policy)
    assert policy.parameter_hash() == before


def test_a_policy_error_names_the_file_when_it_is_no_policy(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    whole = save_policy(tmp_path / "whole", policy).read_bytes()
    contents = {"empty": b"", "half": whole[:-9], "text": b"hello" * 9, "pickle": pickle.dumps({})}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    save_rollout(tmp_path / "rollout", {"rewards": torch.zeros(1, 1)})
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "weights")
    for name in [*contents, "rollout", "weights"]:
        with pytest.raises(PolicyError, match=name):
            load_weights(tmp_path / name, policy)
    with pytest.raises(PolicyError, match="there is no policy file"):
        load_weights(tmp_path / "nowhere", policy)


@pytest.mark.parametrize("manifest", ["[]", "{}", '"x"', "[" * 100_000, "no json"])
def test_a_policy_error_is_raised_when_the_manifest_is_not_ours(
    tmp_path: Path, manifest: str
) -> None:
    tensors = {"x": torch.zeros(1)}
    safetensors.torch.save_file(tensors, tmp_path / "p", metadata={"manifest": manifest})
    with pytest.raises(PolicyError, match="is not a policy written by metta"):
        load_weights(tmp_path / "p", policy_of(AGENTS["mlp"]))


def test_a_policy_error_names_both_versions_when_the_format_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(AGENTS["mlp"])
    monkeypatch.setattr(policy_file, "FORMAT_VERSION", 3)
    path = save_policy(tmp_path / "policy", policy)
    monkeypatch.undo()
    with pytest.raises(PolicyError, match=r"version 3; this version .* reads .* version 1 to 2"):
        load_weights(path, policy)


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "2", None, [2]])
def test_a_policy_error_is_raised_when_the_version_is_none_that_was_ever_written(
    tmp_path: Path, version: Any
) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy)
    rewritten(path, lambda m: m.update(format_version=version))
    with pytest.raises(PolicyError, match="this version of metta reads"):
        load_weights(path, policy)


def as_first_version(manifest: dict[str, Any]) -> None:
    """What the first version wrote; its digest was made of it in the same way."""
    for part in ("spaces", "agent", "built_in", "content_sha256"):
        del manifest[part]
    manifest["format_version"] = 1


def test_a_file_of_the_first_version_loads_when_its_parts_are_those_of_that_time(
    tmp_path: Path,
) -> None:
    first, second = policy_of(AGENTS["lstm"], seed=1), policy_of(AGENTS["lstm"], seed=2)
    path = rewritten(save_policy(tmp_path / "policy", first, {"score": 1}), as_first_version)
    assert load_weights(path, second) == {"score": 1}
    assert first.parameter_hash() == second.parameter_hash()


@pytest.mark.parametrize(
    ("version", "change"),
    [
        (1, lambda m: m.update(format_version=1)),
        (2, lambda m: m.pop("spaces")),
        (2, lambda m: m.pop("agent")),
        (2, lambda m: m.pop("built_in")),
        (2, lambda m: m.update(spaces=[])),
        (2, lambda m: m.update(agent="mlp")),
        (2, lambda m: m.update(built_in=1)),
        (2, lambda m: m.update(entry_point="os:system")),
    ],
)
def test_a_policy_error_is_raised_when_parts_are_not_those_of_the_version(
    tmp_path: Path, version: int, change: Any
) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = rewritten(save_policy(tmp_path / "policy", policy), change)
    assert header_of(path)["format_version"] == version
    with pytest.raises(PolicyError, match="is not a policy written by metta"):
        load_weights(path, policy)


def test_a_policy_is_saved_without_spaces_when_they_have_no_description(tmp_path: Path) -> None:
    low = np.linspace(-1.0, 0.0, 40_000, dtype=np.float32)
    policy = make_policy(spaces.Box(low, low + 1), spaces.Discrete(2), AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy)
    assert header_of(path)["spaces"] is None
    load_weights(path, policy)


def test_a_policy_is_not_written_when_a_weight_is_nan(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy)
    before = path.read_bytes()
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        save_policy(path, policy)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]


def test_the_error_says_how_to_load_when_weights_would_go_into_a_bare_module(tmp_path) -> None:
    from torch import nn

    with pytest.raises(PolicyError, match=r"weights go into a Policy, got a Linear.*PolicyStore"):
        load_weights(tmp_path / "policy.safetensors", nn.Linear(1, 1))


def rewritten(path: Path, change: Any = None, tensors: Any = None) -> Path:
    """The same file with another manifest or other tensors, as one who knows the format writes it."""
    manifest, found = header_of(path), read_weights(path)
    if change:
        change(manifest)
    if tensors:
        tensors(found)
    safetensors.torch.save_file(found, path, metadata={"manifest": json.dumps(manifest)})
    return path


@pytest.mark.parametrize(
    ("change", "tensors"),
    [
        (lambda m: m["metadata"].update(score=2), None),
        (lambda m: m.update(action_space="Discrete(3)"), None),
        (lambda m: m.update(content_sha256="0" * 64), None),
        (lambda m: m.update(content_sha256=[1]), None),
        (None, lambda t: next(iter(t.values())).add_(1e-6)),
    ],
)
def test_a_policy_error_is_raised_when_anything_in_the_file_was_changed(
    tmp_path: Path, change: Any, tensors: Any
) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy, {"score": 1})
    before = policy.parameter_hash()
    with pytest.raises(PolicyError, match="sha256 differs"):
        load_weights(rewritten(path, change, tensors), policy)
    assert policy.parameter_hash() == before


def test_every_flipped_bit_is_found_when_it_lies_anywhere(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy, {"name": "a"})
    whole = path.read_bytes()
    for number in range(0, len(whole) * 8, 101):
        flipped = bytearray(whole)
        flipped[number // 8] ^= 1 << number % 8
        path.write_bytes(flipped)
        with pytest.raises(PolicyError):
            load_weights(path, policy)


def test_a_file_without_a_digest_loads_when_an_old_version_wrote_it(tmp_path: Path) -> None:
    first, second = policy_of(AGENTS["mlp"], seed=1), policy_of(AGENTS["mlp"], seed=2)
    path = save_policy(tmp_path / "policy", first)
    load_weights(rewritten(path, lambda m: m.pop("content_sha256")), second)
    assert first.parameter_hash() == second.parameter_hash()


def test_a_policy_error_is_raised_when_a_manifest_says_more_than_is_known(tmp_path: Path) -> None:
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"]))
    rewritten(path, lambda m: m.update(bontent_sha256=m.pop("content_sha256")))
    with pytest.raises(PolicyError, match=r"has unknown entries: \['bontent_sha256'\]"):
        load_weights(path, policy_of(AGENTS["mlp"]))


@pytest.mark.parametrize("lie", [
    lambda t: t.update(extra=torch.zeros(1)),
    lambda t: t.pop(next(iter(t))),
    lambda t: t.update({name: v.double() for name, v in t.items()}),
    lambda t: t.update({name: v.unsqueeze(0) for name, v in t.items()}),
    lambda t: t.update({name: v.view(torch.int32) for name, v in t.items() if v.ndim}),
])  # fmt: skip
def test_a_policy_error_is_raised_when_the_tensors_are_not_those_of_the_architecture(
    tmp_path: Path, lie: Any
) -> None:
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"], seed=1))
    rewritten(path, lambda m: m.pop("content_sha256"), lie)
    policy = policy_of(AGENTS["mlp"], seed=2)
    before = policy.parameter_hash()
    with pytest.raises(PolicyError, match="does not fit this policy's layers or spaces"):
        load_weights(path, policy)
    assert policy.parameter_hash() == before


def test_a_policy_error_is_raised_when_the_weights_of_a_file_are_nan(tmp_path: Path) -> None:
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"]))
    rewritten(
        path,
        lambda m: m.pop("content_sha256"),
        lambda t: next(iter(t.values())).fill_(float("nan")),
    )
    with pytest.raises(PolicyError, match="are NaN or infinite"):
        load_weights(path, policy_of(AGENTS["mlp"]))


def test_only_the_pinned_file_is_loaded_when_its_digest_is_given(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"], seed=2)
    path = save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"], seed=1))
    before, digest = policy.parameter_hash(), sha256_of(path)
    with pytest.raises(PolicyError, match=f"not the pinned file: its sha256 is {digest}"):
        load_weights(path, policy, sha256="0" * 64)
    with pytest.raises(PolicyError, match="there is no policy file"):
        load_weights(tmp_path / "nowhere", policy, sha256=digest)
    assert policy.parameter_hash() == before
    load_weights(path, policy, sha256=digest.upper())
    assert policy.parameter_hash() != before


def test_metadata_that_could_not_be_read_again_is_refused_when_a_policy_is_saved(
    tmp_path: Path,
) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(PolicyError, match=r"cannot be saved as .* deeper than 32 levels"):
        save_policy(tmp_path / "policy", policy_of(AGENTS["mlp"]), {"deep": deep})
    frozen = freeze_policy(policy_of(AGENTS["mlp"]))
    frozen.tensors["odd"] = torch.zeros(1, dtype=torch.complex64)
    with pytest.raises(PolicyError, match=r"'odd' has the type torch\.complex64"):
        save_policy(tmp_path / "policy", frozen)
    assert not any(tmp_path.iterdir())


def test_numbers_that_are_none_return_when_they_are_metadata(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy, {"score": float("-inf")})
    assert load_weights(path, policy) == {"score": float("-inf")}


def test_shapes_are_told_when_weights_are_not_read(tmp_path: Path) -> None:
    policy = policy_of(AGENTS["mlp"])
    path = save_policy(tmp_path / "policy", policy)
    with open_policy(path) as opened:
        shapes = opened.shapes
    assert sorted(shapes) == sorted(tuple(v.shape) for v in policy.state_dict().values())


def test_the_error_names_the_converter_when_the_file_is_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "policy.safetensors").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(PolicyError, match="metta convert --i-trust-this-file"):
        load_weights(tmp_path / "policy.safetensors", policy_of(AGENTS["mlp"]))
