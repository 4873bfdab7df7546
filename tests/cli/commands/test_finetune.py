"""Beginning a new run with the weights of another."""

import json
from pathlib import Path

import pytest
import torch

from metta.cli.main import main
from metta.store.checkpoints.files import read_checkpoint
from metta.store.policy_store import PolicyStore

SMALL = ["num_envs=2", "horizon=8", "eval_episodes=0", "verbose=false", "num_minibatches=1",
         "final_replay=false"]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = ["CartPole-v1", "total_timesteps=32", "hidden_size=16", "normalize_observations=true"]
    assert main(["train", *words, *SMALL, "--run", "first", "--output", str(folder)]) == 0
    return folder


def test_only_the_policy_is_taken_over_when_a_run_begins_with_another_ones(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["CartPole-v1", "total_timesteps=16", "learning_rate=0.5", "seed=9", *SMALL]
    place = ["--run", "second", "--output", str(runs)]
    assert main(["finetune", "first:latest", *words, *place]) == 0
    assert "begins with the policy file://" in capsys.readouterr().out
    first = PolicyStore(runs).load("first:latest", "CartPole-v1").policy
    second = read_checkpoint(runs / "second" / "checkpoints" / "epoch_000001")
    assert first is not None
    # its one epoch came after the weights, the architecture (16 units) and the normaliser
    counts = [key for key in second.snapshot["policy"]["state"] if key.endswith("count")]
    assert counts
    before = first.state_dict()
    assert all(
        float(second.snapshot["policy"]["state"][key]) > float(before[key]) for key in counts
    )
    assert second.agent_step == 16
    provenance = json.loads((runs / "second" / "provenance.json").read_text())
    assert provenance["initial_policy"].endswith("first/checkpoints/epoch_000002")


def test_the_weights_are_the_same_when_nothing_was_learned_yet(runs: Path) -> None:
    words = ["CartPole-v1", "total_timesteps=16", "learning_rate=1e-30", *SMALL]
    place = ["--run", "third", "--output", str(runs)]
    assert main(["finetune", "first:latest", *words, *place]) == 0
    first = read_checkpoint(runs / "first" / "checkpoints" / "epoch_000002")
    third = read_checkpoint(runs / "third" / "checkpoints" / "epoch_000001")
    weights = [
        key
        for key, value in first.snapshot["policy"]["state"].items()
        if value.is_floating_point() and "normal" not in key
    ]
    assert weights
    for key in weights:
        before, after = (run.snapshot["policy"]["state"][key] for run in (first, third))
        assert torch.allclose(before, after, atol=1e-6), key


def test_it_is_refused_when_it_would_not_be_a_new_run_or_another_network(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(runs)]
    assert main(["finetune", "first:latest", "CartPole-v1", "--run", "first", *output]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(["finetune", "first:latest", "CartPole-v1", "hidden_size=8", *output]) == 2
    assert "the network is that of the policy" in capsys.readouterr().err
    assert main(["finetune", "first:latest", "Acrobot-v1", *output]) == 1
    assert "does not fit" in capsys.readouterr().err
    assert main(["finetune", "none:latest", "CartPole-v1", *output]) == 1
    assert "'none'" in capsys.readouterr().err
    assert not [
        path.name for path in runs.iterdir() if path.name not in ("first", "second", "third")
    ]
