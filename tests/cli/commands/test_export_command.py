"""`metta export` writes a saved policy for other programs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from metta.agent.factory import make_policy
from metta.cli.main import main
from metta.envs.toy import CorridorEnv
from metta.files import sha256_of
from metta.store.checkpoints.files import write_checkpoint
from metta.store.loaded_policy import load_policy
from metta.train.train_config import AgentConfig


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    env = CorridorEnv()
    policy = make_policy(env.observation_space, env.action_space, AgentConfig(hidden_size=8))
    write_checkpoint(
        tmp_path / "runs" / "first" / "checkpoints", {}, policy, {"epoch": 1, "agent_step": 10}
    )
    return tmp_path / "runs"


def test_a_policy_is_written_when_its_run_is_named(runs: Path, tmp_path: Path, capsys) -> None:
    target = tmp_path / "policy.pt2"
    words = ["export", "first:latest", "--format", "torch", "--runs", str(runs)]
    assert main([*words, "-o", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "inputs:  obs\n" in printed
    assert "outputs: dist_params, value, action\n" in printed
    program = torch.export.load(target).module()
    agent = load_policy(runs / "first")
    observations = np.eye(8, dtype=np.float32)
    found = program({"obs": torch.from_numpy(observations)})["action"]
    assert found.tolist() == agent.act(observations, greedy=True).tolist()


def test_a_policy_runs_elsewhere_when_it_is_written_as_onnx(
    runs: Path, tmp_path: Path, capsys
) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import onnxruntime

    target = tmp_path / "policy.onnx"
    words = ["export", str(runs / "first"), "--format", "onnx", "-o", str(target)]
    assert main([*words, "--action-mask"]) == 0
    assert "inputs:  obs, action_mask\n" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(target)
    mask = np.array([[True, False]] * 8)
    (actions,) = session.run(["action"], {"obs": np.eye(8, dtype=np.float32), "action_mask": mask})
    assert actions.tolist() == [0] * 8


def test_only_the_pinned_policy_is_written_when_its_digest_is_given(
    runs: Path, tmp_path: Path, capsys
) -> None:
    words = ["export", str(runs / "first"), "--format", "torch", "-o", str(tmp_path / "a.pt2")]
    assert main([*words, "--sha256", "0" * 64]) == 1
    assert "not the pinned file" in capsys.readouterr().err
    file = next(runs.rglob("policy.safetensors"))
    assert main([*words, "--sha256", sha256_of(file)]) == 0


def test_a_file_stays_when_it_lies_where_the_result_would_go(
    runs: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "mine").write_text("mine")
    words = ["export", str(runs / "first"), "--format", "torch", "-o", str(tmp_path / "mine")]
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_exit_code_tells_why_when_nothing_can_be_written(tmp_path: Path, capsys) -> None:
    words = ["export", str(tmp_path / "nowhere"), "-o", str(tmp_path / "a.pt2")]
    assert main([*words, "--format", "torch"]) == 1
    assert "there is no policy" in capsys.readouterr().err
    with pytest.raises(SystemExit) as raised:
        main([*words, "--format", "keras"])
    assert raised.value.code == 2
    assert not any(tmp_path.iterdir())
