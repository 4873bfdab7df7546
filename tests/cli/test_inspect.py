"""`metta inspect`: what is inside, and never a traceback, whatever is inside."""

import argparse
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metta.agent.factory import make_policy
from metta.cli.commands.inspect import configure
from metta.cli.main import main
from metta.envs.toy import CorridorEnv
from metta.files import sha256_of
from metta.runs.inspection import find_thing, inspect_thing
from metta.store.checkpoints.files import write_checkpoint
from metta.store.checkpoints.manifest import sealed
from metta.store.policy_store import PolicyStore, spaces_of
from metta.train.train_config import AgentConfig, TrainingConfig

POLICY = make_policy(*spaces_of(CorridorEnv), AgentConfig(hidden_size=4), seed=1)
NUM_NUMBERS = sum(tensor.numel() for tensor in POLICY.state_dict().values())
SNAPSHOT = {
    "conditions": {"version": 2, "state": {"plan": {"threads": 1}}},
    "environments": {"version": 1, "state": {"class": "replay", "rows": [np.zeros((3, 2))]}},
    "optimizer": {"version": 4, "state": {"moments": {0: torch.ones(5), 1: (torch.ones(2, 2), 7)}}},
    "policy": {"version": 1, "state": {}},
}


def checkpoint(folder: Path, epoch: int = 3, **metadata: Any) -> Path:
    about = {"epoch": epoch, "agent_step": 1000 * epoch, "score": 2.5, "agent": {"hidden_size": 4}}
    return write_checkpoint(folder, SNAPSHOT, POLICY, {**about, **metadata})


def inspect(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_everything_is_told_when_a_checkpoint_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path)
    for words in ([], ["--verify"]):
        code, found = inspect(capsys, path, *words)
        assert code == 0
        assert (found["kind"], found["path"]) == ("checkpoint", str(path))
        assert found["format"] == "metta-checkpoint 1"
        assert (found["epoch"], found["agent_step"], found["score"]) == (3, 3000, 2.5)
        assert found["metadata"]["agent"] == {"hidden_size": 4}
        assert found["environments"] == "replay"
        assert found["conditions"] == {"plan": {"threads": 1}}
        assert found["num_numbers"] == NUM_NUMBERS
        assert found["problems"] == []
        assert [file["state"] for file in found["files"]] == ["ok"] * 3
        for file in found["files"]:
            assert file["sha256"] == sha256_of(path / file["name"])
            assert file["bytes"] == (path / file["name"]).stat().st_size
        components = {part.pop("name"): part for part in found["components"]}
        assert components["optimizer"] == {"version": 4, "tensors": 2, "numbers": 9}
        assert components["environments"] == {"version": 1, "tensors": 1, "numbers": 6}
        assert components["policy"]["numbers"] == NUM_NUMBERS
        shapes = {tensor["name"]: tensor["shape"] for tensor in found["tensors"]}
        assert shapes == {name: list(t.shape) for name, t in POLICY.state_dict().items()}


def test_facts_files_components_and_shapes_are_shown_when_people_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path)
    assert main(["inspect", str(path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["agent_step", "3,000"] in lines
    assert ["metadata.agent.hidden_size", "4"] in lines
    assert ["environments", "replay"] in lines
    assert ["optimizer", "4", "2", "9"] in lines
    assert any(line[:1] == ["policy.safetensors"] and "ok" in line for line in lines)
    assert ["module.heads.critic.bias", "F32", "1"] in lines


def test_the_pin_of_a_policy_file_is_told_when_it_is_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PolicyStore(tmp_path).save(POLICY, "mine", 7, 70, {"score": 1.5})
    path = tmp_path / "mine_000007.safetensors"
    for words in ([], ["--verify"]):
        code, found = inspect(capsys, path.as_uri(), *words)
        assert code == 0
        assert (found["kind"], found["epoch"], found["score"]) == ("policy", 7, 1.5)
        assert found["files"][0]["sha256"] == sha256_of(path)
        assert found["num_tensors"] == len(POLICY.state_dict())


def test_the_thing_is_found_when_it_is_named_in_any_way(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    TrainingConfig().to_yaml(run / "config.yaml")
    old = checkpoint(run / "checkpoints", 1, score=9.0)
    new = checkpoint(run / "checkpoints", 2)
    output = tmp_path / "runs"
    for name in (
        "first",
        str(run),
        str(run / "checkpoints"),
        new.as_uri(),
        "first:latest",
        "first:v2",
    ):
        assert find_thing(name, output) == new
    assert find_thing("first:best", output) == find_thing(str(old), output) == old
    assert find_thing(str(new / "policy.safetensors"), output) == new / "policy.safetensors"


def test_the_newest_is_shown_when_a_run_has_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "checkpoints", 1)
    new = checkpoint(tmp_path / "checkpoints", 2)
    (new / "state.json").unlink()
    code, found = inspect(capsys, tmp_path)
    assert code == 1
    assert found["epoch"] == 2
    states = {file["name"]: (file["state"], file["bytes"]) for file in found["files"]}
    assert states["state.json"] == ("missing", None)
    assert "is missing, though the manifest lists it" in found["problems"][0]


@pytest.mark.parametrize("name", ["policy.safetensors", "state.safetensors", "state.json"])
def test_the_damaged_file_is_named_when_a_bit_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = checkpoint(tmp_path)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    assert main(["inspect", str(path)]) == 1
    shown = capsys.readouterr().out
    assert f"{name}' is damaged: its content is not what was written" in shown
    code, found = inspect(capsys, path)
    assert code == 1
    assert [file["name"] for file in found["files"] if file["state"] == "damaged"] == [name]


def test_a_damaged_policy_file_is_told_of_when_it_stands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PolicyStore(tmp_path).save(POLICY, "mine", 7)
    path = tmp_path / "mine_000007.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for words in ([], ["--verify"]):
        code, found = inspect(capsys, path, *words)
        assert (code, found["files"][0]["state"]) == (1, "damaged")


def test_the_missing_manifest_is_named_when_a_checkpoint_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path)
    (path / "manifest.json").unlink()
    assert main(["inspect", str(path)]) == 1
    assert "is not a complete checkpoint: it has no manifest.json" in capsys.readouterr().err


def write_manifest(path: Path, content: bytes) -> None:
    (path / "manifest.json").write_bytes(content)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "CheckpointError"),
        (b"[" * 100_000, "CheckpointError"),
        (b'{"format": "metta-checkpoint", "format_version": 99}', "CheckpointError"),
        (b'{"format": "metta-checkpoint", "format_version": 1, "files": 3}', "CheckpointError"),
        (b"\x80\x04N.", "CheckpointError"),
    ],
)
def test_the_error_is_typed_and_the_code_1_when_a_manifest_is_hostile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, error: str
) -> None:
    path = checkpoint(tmp_path)
    write_manifest(path, content)
    assert main(["inspect", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"metta: {error}: ")
    assert "Traceback" not in shown.err + shown.out


@pytest.mark.parametrize(
    "name",
    ["nothing", "no/such", "file:///no/such", "wandb://a/b", "run:best", "x" * 5000, "a\0b", "~"],
)
def test_the_error_is_typed_and_the_code_1_when_there_is_no_such_thing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["inspect", name, "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("metta: PolicyError: ")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\x80\x04N.", b"PK\x03\x04", b"\0" * 100, b"{}" * 50]
)
def test_the_error_is_typed_and_the_code_1_when_a_file_is_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert main(["inspect", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("metta: PolicyError: ")


def test_no_mutation_is_a_traceback_when_files_are_changed_at_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, numbers = checkpoint(tmp_path / "whole"), random.Random(1)
    names = ["policy.safetensors", "state.safetensors", "state.json", "manifest.json"]
    for number in range(60):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(whole, copy)
        file = copy / numbers.choice(names)
        content = bytearray(file.read_bytes())
        place = numbers.randrange(len(content))
        content[place : place + numbers.choice([0, 1, 5, 9999])] = numbers.randbytes(
            numbers.choice([1, 3])
        )
        file.write_bytes(content)
        words = [
            str(copy if numbers.random() < 0.7 else file),
            *numbers.choice([[], ["--verify"], ["--json"]]),
        ]
        assert main(["inspect", *words]) == 1, words
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err + shown.out


def test_a_terminal_obeys_nothing_when_metadata_has_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path, **{"note\n": "\x1b[2Jgone\r\u202e", "long": "y" * 5000})
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "metadata.note\\n" in shown
    assert "\\x1b[2Jgone\\r\\u202e" in shown
    assert max(map(len, shown.splitlines())) < 200


def test_the_rest_is_counted_when_there_is_more_than_a_screen_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path, many={str(number): number for number in range(500)})
    assert main(["inspect", str(path)]) == 0
    assert "more (--json shows all)" in capsys.readouterr().out
    assert len(inspect(capsys, path)[1]["metadata"]["many"]) == 500


def test_the_error_is_typed_when_a_sealed_manifest_lacks_a_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]["state.json"]["sha256"]
    write_manifest(path, json.dumps(sealed(manifest)).encode())
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.startswith("metta: CheckpointError: ")


def test_everything_wrong_is_a_problem_when_state_is_no_state(tmp_path: Path) -> None:
    """A checkpoint whose checksums fit, but whose components are no components."""
    path = checkpoint(tmp_path)
    (path / "state.json").write_text('{"optimizer": 3}')
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.json"] = {
        "size": (path / "state.json").stat().st_size,
        "sha256": sha256_of(path / "state.json"),
    }
    write_manifest(path, json.dumps(sealed(manifest)).encode())
    for load in (False, True):
        found = inspect_thing(path, load=load)
        assert found["problems"]
        assert found["epoch"] == 3


def test_the_command_has_its_options_when_a_parser_is_built() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    options = parser.parse_args(["x", "--json", "--verify"])
    assert (options.thing, options.json, options.verify, options.runs) == (
        "x",
        True,
        True,
        "runs",
    )
