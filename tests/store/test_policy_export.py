"""Exported policies give what the policy gives, for every kind of agent and both formats."""

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.errors import ConfigError, MissingExtraError, NonFiniteError, PolicyError
from metta.store.exports import check as export_check
from metta.store.exports import graph as export_graph
from metta.store.exports import policy_export as export_module
from metta.store.exports.check import check_exported, example_inputs
from metta.store.exports.graph import PolicyGraph, env_units
from metta.store.exports.policy_export import FORMATS, export_policy
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
NORMALISED = AgentConfig(hidden_size=8, normalize_observations=True, normalize_returns=True)
AGENTS: dict[str, tuple[Any, Any, AgentConfig]] = {
    "mlp, normalised, discrete": (VECTOR, spaces.Discrete(4, start=2), NORMALISED),
    "cnn, squashed box": (
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Box(-5.0, 1e6, (2, 2), np.float64),
        AgentConfig(hidden_size=8, squash=True),
    ),
    "lstm, box": (
        VECTOR,
        spaces.Box(np.float32([-0.01, -2]), np.float32([0.01, np.inf])),
        AgentConfig(hidden_size=8, core="lstm", std="state"),
    ),
    "gru, multi-discrete": (
        VECTOR,
        spaces.MultiDiscrete([2, 3], start=[1, 5]),
        AgentConfig(hidden_size=8, core="gru"),
    ),
    "nested, masked": (NESTED, spaces.Discrete(5), AgentConfig(hidden_size=8)),
    "lstm, nested, binary": (
        spaces.Dict({key: NESTED[key] for key in ("z", "a", "bits")}),
        spaces.MultiBinary(3),
        AgentConfig(hidden_size=8, core="lstm"),
    ),
}


def need(format: str) -> None:
    if format == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)


def policy_of(name: str) -> Policy:
    """A policy whose choices differ from row to row, and whose normalisers have seen something."""
    policy = make_policy(*AGENTS[name], seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in policy.parameters():
            part.add_(torch.randn(part.shape, generator=generator) * 0.2)
    if policy.obs_normalizer is not None:
        rollout = {
            "observations": torch.randn(8, 4, 3, generator=generator) * 5 + 2,
            "returns": torch.randn(8, 4, generator=generator) * 50,
            "valid": torch.ones(8, 4, dtype=torch.bool),
        }
        policy.update_normalizers(rollout)
    return policy


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", AGENTS)
def test_an_exported_policy_agrees_when_it_is_of_any_kind(
    tmp_path: Path, name: str, format: str
) -> None:
    need(format)
    policy = policy_of(name)
    before = policy.parameter_hash(), policy.training
    masked = bool(policy.action_spec.mask_size)
    made = export_policy(policy, tmp_path / "policy", format=format, action_mask=masked)
    assert made.largest_difference < 1e-5
    assert (policy.parameter_hash(), policy.training) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]
    assert ("action_mask" in made.inputs) == masked
    assert ("starts" in made.inputs) == policy.is_recurrent
    assert made.outputs[:3] == ("dist_params", "value", "action")
    for name_of_part in policy.initial_state(1):
        assert f"state/{name_of_part}" in made.inputs
        assert f"next_state/{name_of_part}" in made.outputs


@pytest.mark.parametrize("name", AGENTS)
def test_the_graph_agrees_when_nothing_is_exported_yet(name: str) -> None:
    policy = policy_of(name)
    masked = bool(policy.action_spec.mask_size)
    graph = PolicyGraph(policy, with_mask=masked)

    def run(inputs: Any) -> dict[str, np.ndarray]:
        return {key: value.numpy() for key, value in graph(dict(inputs)).items()}

    assert check_exported(run, policy, with_mask=masked) < 1e-5
    inputs = example_inputs(policy, 64, with_mask=masked)
    assert list(inputs) == graph.input_names
    actions = run(inputs)
    assert list(actions) == graph.output_names
    assert len(np.unique(actions["action"].reshape(64, -1), axis=0)) > 1  # it compares choices
    for action in actions["action"]:
        assert policy.action_space.contains(action)


@pytest.mark.parametrize("name", AGENTS)
def test_units_are_those_of_the_environment_when_actions_are_stored_ones(name: str) -> None:
    spec = make_policy(*AGENTS[name]).action_spec
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(50, spec.num_params, generator=generator) * 3
    stored = spec.mode(params, None)
    found, wanted = env_units(spec, stored).numpy(), spec.to_env(stored.numpy())
    assert found.dtype == wanted.dtype
    # tanh may differ in its last bit, which is multiplied by the range
    assert np.abs(found - wanted).max() <= 1e-6 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("name", ["value", "action", "dist_params", "next_state/hidden"])
@pytest.mark.parametrize("agent", ["lstm, box", "gru, multi-discrete"])
def test_a_policy_error_names_the_output_when_it_disagrees(agent: str, name: str) -> None:
    policy = policy_of(agent)
    graph = PolicyGraph(policy, with_mask=False)

    def run(inputs: Any) -> dict[str, np.ndarray]:
        found = {key: value.numpy() for key, value in graph(dict(inputs)).items()}
        wrong = found[name] + 1 if found[name].dtype.kind == "f" else found[name][::-1]
        return found | {name: wrong}

    with pytest.raises(PolicyError, match=r"disagrees with the policy: (it chooses|" + name + ")"):
        check_exported(run, policy, with_mask=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {"value": found["value"]}, "gives .*value.*, not"),
        (lambda found: found | {"value": found["value"][:1]}, "gives value as"),
        (lambda found: found | {"value": found["value"].astype(np.float64)}, "gives value as"),
        (lambda found: found | {"value": found["value"] * np.nan}, "value differs by nan"),
        (lambda found: found["nothing"], "failed for 1 rows: KeyError"),
    ],
)
def test_a_policy_error_is_raised_when_outputs_are_not_those_of_a_policy(
    change: Any, message: str
) -> None:
    policy = policy_of("mlp, normalised, discrete")
    graph = PolicyGraph(policy, with_mask=False)
    with pytest.raises(PolicyError, match=message):
        check_exported(
            lambda inputs: change({k: v.numpy() for k, v in graph(dict(inputs)).items()}),
            policy,
            with_mask=False,
        )


def test_the_old_file_stays_when_the_new_one_disagrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_far(spec: Any, action: Tensor) -> Tensor:
        return env_units(spec, action) + 1

    monkeypatch.setattr(export_graph, "env_units", too_far)
    policy = policy_of("mlp, normalised, discrete")
    with pytest.raises(PolicyError, match="disagrees with the policy"):
        export_policy(policy, tmp_path / "new", format="torch")
    (tmp_path / "old").write_text("mine")
    with pytest.raises(PolicyError, match="disagrees with the policy"):
        export_policy(policy, tmp_path / "old", format="torch")
    assert [entry.name for entry in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "mine"


def test_what_is_loaded_was_made_here_when_the_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"x")
    monkeypatch.setattr(export_module, "_torch_runner", loaded.append)
    with pytest.raises(PolicyError, match="does not hold what was written"):
        export_policy(policy_of("gru, multi-discrete"), tmp_path / "policy", format="torch")
    assert loaded == []
    assert not any(tmp_path.iterdir())


class Branching(nn.Module):
    """Decides by the values of a tensor, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs)
        if bool(out.sum() > 0):
            out = -out
        return out[..., :2], out[..., 2]


def test_a_policy_error_says_why_when_a_network_cannot_be_exported(tmp_path: Path) -> None:
    policy = Policy(Branching(), VECTOR, spaces.Discrete(2))
    with pytest.raises(PolicyError, match="cannot be exported as torch"):
        export_policy(policy, tmp_path / "policy", format="torch")
    assert not any(tmp_path.iterdir())


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        out = self.layer(obs)
        return {"action_logits": out[..., :2], "value": out[..., 2]}


def test_a_network_of_ones_own_is_exported_as_it_evaluates_when_it_is_given(tmp_path: Path) -> None:
    policy = Policy(Own(), VECTOR, spaces.Discrete(2))
    made = export_policy(policy, tmp_path / "policy", format="torch")
    assert made.largest_difference < 1e-5
    assert policy.training


def test_the_file_says_whose_policy_it_is_when_torch_wrote_it(tmp_path: Path) -> None:
    policy = policy_of("gru, multi-discrete")
    path = export_policy(policy, tmp_path / "policy.pt2", format="torch").path
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        name = next(name for name in archive.namelist() if name.endswith("metta.json"))
        about = json.loads(archive.read(name))
        texts = [archive.read(entry) for entry in archive.namelist()]
    assert about["policy_hash"] == policy.parameter_hash()
    source = str(Path(export_graph.__file__).parents[2]).encode()
    assert not any(source in text for text in texts)  # no paths of the machine that exported it


def test_the_file_says_whose_policy_it_is_when_onnx_wrote_it(tmp_path: Path) -> None:
    need("onnx")
    import onnx

    policy = policy_of("gru, multi-discrete")
    path = export_policy(policy, tmp_path / "policy.onnx", format="onnx").path
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    about = {entry.key: json.loads(entry.value) for entry in model.metadata_props}["metta"]
    assert about["policy_hash"] == policy.parameter_hash()
    assert [value.name for value in model.graph.input] == ["obs", "state/hidden", "starts"]
    rows = {value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input}
    assert rows == {"batch"}
    assert str(Path(export_graph.__file__).parents[2]).encode() not in path.read_bytes()


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_the_error_names_the_extra_when_a_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        there = None if name == package else export_check
        monkeypatch.setitem(sys.modules, name, there)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*metta-rl\[onnx\]"):
        export_policy(policy_of("lstm, box"), tmp_path / "policy", format="onnx")


def test_an_error_is_raised_when_what_is_asked_for_makes_no_sense(tmp_path: Path) -> None:
    policy = policy_of("lstm, box")
    with pytest.raises(ConfigError, match="did you mean 'torch'"):
        export_policy(policy, tmp_path / "policy", format="torchh")
    with pytest.raises(ConfigError, match="have no masks"):
        export_policy(policy, tmp_path / "policy", format="torch", action_mask=True)
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="not exported"):
        export_policy(policy, tmp_path / "policy", format="torch")
    assert not any(tmp_path.iterdir())
