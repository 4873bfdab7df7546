"""Checkpoints on disk: whole or absent, and every torn byte is seen."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from metta import files
from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import CorridorEnv
from metta.errors import CheckpointError, MettaWarning, NonFiniteError, UnsafeFileError
from metta.stateful import digest_of
from metta.store.checkpoints import files as checkpoint_files
from metta.store.checkpoints import manifest as checkpoint_manifest
from metta.store.checkpoints.files import (
    list_checkpoints,
    read_checkpoint,
    read_newest_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from metta.store.checkpoints.manifest import CheckpointEntry, manifest_of, sealed
from metta.store.checkpoints.retention import prune_checkpoints
from metta.store.policies.file import freeze_policy, load_weights
from metta.train.train_config import AgentConfig

FILES = ["policy.safetensors", "state.safetensors", "state.json", "manifest.json"]


def policy_of(seed: int = 0) -> Policy:
    env = CorridorEnv()
    config = AgentConfig(hidden_size=8)
    return make_policy(env.observation_space, env.action_space, config, seed=seed)


def snapshot_of(policy: Policy) -> dict[str, Any]:
    return {
        "policy": {"version": 1, "state": policy.state_dict()},
        "optimizer": {"version": 1, "state": {"state": {0: {"step": torch.tensor(3.0)}}}},
        "trackers": {"version": 2, "state": {"returns": [1.0, float("nan")], "name": None}},
    }


def write(folder: Path, epoch: int = 120, **metadata: Any) -> Path:
    policy = policy_of(epoch)
    about = {"epoch": epoch, "agent_step": epoch * 10, **metadata}
    return write_checkpoint(folder, snapshot_of(policy), policy, about)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_everything_returns_when_a_checkpoint_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "checkpoints", score=float("nan"), sizes=(1, 2))
    assert path == tmp_path / "a" / "checkpoints" / "epoch_000120"
    assert names_in(path) == sorted(FILES)
    found = read_checkpoint(path)
    assert (found.path, found.epoch, found.agent_step) == (path, 120, 1200)
    assert digest_of(found.snapshot) == digest_of(snapshot_of(policy_of(120)))
    assert found.optimizer_state == {"state": {0: {"step": torch.tensor(3.0)}}}
    assert found.metadata["sizes"] == [1, 2]
    assert found.metadata["score"] != found.metadata["score"]
    assert found.score is None


def test_the_policy_loads_alone_when_only_its_file_is_given(tmp_path: Path) -> None:
    path, policy = write(tmp_path), policy_of(1)
    metadata = load_weights(path / "policy.safetensors", policy)
    assert policy.parameter_hash() == policy_of(120).parameter_hash()
    assert metadata == {"epoch": 120, "agent_step": 1200}


def test_the_manifest_comes_last_when_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write_durably = checkpoint_files.write_durably

    def record(path: Path, fill: Callable[[Path], None]) -> None:
        write_durably(path, fill)
        written.append(f"{path.name} of {len(names_in(path.parent))}")

    monkeypatch.setattr(checkpoint_files, "write_durably", record)
    write(tmp_path)
    assert written == ["state.safetensors of 2", "state.json of 3", "manifest.json of 4"]


def test_a_checkpoint_is_read_again_when_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that says yes and writes something else."""
    older, rename = write(tmp_path, 1), files.rename

    def rename_and_forget(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name == "epoch_000002":
            content = (target / "state.safetensors").read_bytes()
            (target / "state.safetensors").write_bytes(content[:-1] + b"?")

    monkeypatch.setattr(files, "rename", rename_and_forget)
    with pytest.raises(CheckpointError, match=r"epoch 2 could not be written.*sha256.*untouched"):
        write(tmp_path, 2)
    assert names_in(tmp_path) == ["epoch_000001"]
    assert read_checkpoint(older).epoch == 1


@pytest.mark.parametrize("reader", ["check_tensor_file", "read_json"])
def test_a_checkpoint_is_refused_when_it_could_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    def refuse(path: Path) -> None:
        raise UnsafeFileError(f"{path.name} is larger than the limits")

    monkeypatch.setattr(checkpoint_files, reader, refuse)
    with pytest.raises(CheckpointError, match=r"could not be written.*larger than.*untouched"):
        write(tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_checkpoint_error_names_the_file_when_it_is_cut(
    tmp_path: Path, name: str, share: float
) -> None:
    path = write(tmp_path)
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(path)
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("name", FILES[:3])
def test_a_checkpoint_error_names_the_file_when_a_bit_is_flipped(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    content = bytearray((path / name).read_bytes())
    content[-3] ^= 1
    (path / name).write_bytes(content)
    for read in (read_checkpoint, verify_checkpoint):
        with pytest.raises(CheckpointError, match=rf"{name}' is damaged: .*sha256"):
            read(path)


def test_a_checkpoint_error_is_raised_when_any_bit_of_the_manifest_is_flipped(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, score=1.5) / "manifest.json"
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="epoch_000120"):
            read_checkpoint(path.parent)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_error_is_raised_when_a_file_is_a_link(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a")
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_error_is_raised_when_the_disk_cannot_read_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, 1)
    path, opened = write(tmp_path, 2), os.open

    def fail(file: Any, *rest: Any, **more: Any) -> int:
        if str(file) == str(path / name):
            raise OSError(5, "Input/output error")
        return opened(file, *rest, **more)

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr(Path, "open", lambda self, mode: os.fdopen(os.open(self, 0), mode))
    with pytest.raises(CheckpointError, match=rf"{name}.*Input/output error"):
        read_checkpoint(path)
    with pytest.warns(MettaWarning, match="going back to 'epoch_000001'"):
        newest = read_newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.epoch == 1


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_error_names_the_file_when_it_is_missing(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}},
        {"files": {"../policy.safetensors": {"size": 1, "sha256": "x"}}},
        {"files": dict.fromkeys(FILES[:3], 5)},
        {"files": None},
        {"epoch": "many"},
        {"epoch": 1e999},
        {"agent_step": None},
        {"metadata": []},
        {"metadata": {"$code": "x"}},
        {"format": "other"},
        {"format_version": 2},
    ],
)
def test_a_checkpoint_error_is_raised_when_the_manifest_lies(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = write(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(sealed(manifest | change)))
    with pytest.raises(CheckpointError, match="epoch_000120"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "tree",
    ["[]", "3", '{"a": {"$code": 1}}', '{"a": {"$tensor": "none"}}', '{"a": {}}', "[" * 99_999],
)
def test_a_checkpoint_error_is_raised_when_the_tree_is_not_ours(tmp_path: Path, tree: str) -> None:
    path = write(tmp_path)
    (path / "state.json").write_text(tree)
    manifest = manifest_of(path, {"epoch": 120, "agent_step": 1200})
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not a checkpoint of metta"):
        read_checkpoint(path)


def test_the_first_one_stays_when_an_epoch_is_saved_twice(tmp_path: Path) -> None:
    first = write(tmp_path, score=1.0)
    before = (first / "manifest.json").read_bytes()
    second = write(tmp_path, score=2.0)
    assert second.name == "epoch_000120.2"
    assert (first / "manifest.json").read_bytes() == before
    newest = read_newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.path == second
    prune_checkpoints(tmp_path, keep_last=3)
    assert names_in(tmp_path) == ["epoch_000120.2"]


@pytest.mark.parametrize("kind", ["empty folder", "file", "dangling link"])
def test_what_bears_the_name_stays_when_it_is_no_checkpoint(tmp_path: Path, kind: str) -> None:
    taken = tmp_path / "epoch_000120"
    if kind == "empty folder":
        taken.mkdir()
    elif kind == "file":
        taken.write_text("x")
    else:
        taken.symlink_to(tmp_path / "nowhere")
    before = taken.lstat()
    assert write(tmp_path).name == "epoch_000120.2"
    assert taken.lstat() == before


def test_epochs_are_ordered_by_number_when_they_are_listed(tmp_path: Path) -> None:
    for epoch in (1_000_000, 20, 999_999):
        write(tmp_path, epoch)
    assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [20, 999_999, 1_000_000]
    assert list_checkpoints(tmp_path / "nowhere") == []
    assert read_newest_checkpoint(tmp_path / "nowhere") is None


def test_older_checkpoints_stay_alone_when_a_weight_is_nan(tmp_path: Path) -> None:
    write(tmp_path, 1)
    policy = policy_of()
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] = float("inf")
    with pytest.raises(NonFiniteError):
        write_checkpoint(tmp_path, {}, policy, {"epoch": 2, "agent_step": 0})
    assert names_in(tmp_path) == ["epoch_000001"]


@pytest.mark.parametrize(
    ("component", "state"),
    [
        ("optimizer", {"state": {0: {"exp_avg": torch.tensor([0.0, float("nan")])}}}),
        ("loss/mine", {"scale": np.array(float("inf"))}),
    ],
)
def test_nothing_is_written_when_what_learns_is_not_finite(
    tmp_path: Path, component: str, state: dict[str, Any]
) -> None:
    policy = policy_of()
    parts = snapshot_of(policy) | {component: {"version": 1, "state": state}}
    with pytest.raises(NonFiniteError, match=component):
        write_checkpoint(tmp_path / "new", parts, policy, {"epoch": 2, "agent_step": 0})
    assert names_in(tmp_path) == []


def test_nothing_is_written_when_a_frozen_policy_is_not_finite(tmp_path: Path) -> None:
    frozen = freeze_policy(policy_of())
    name, tensor = next(item for item in frozen.tensors.items() if item[1].is_floating_point())
    tensor.view(-1)[0] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"{name} of 'policy'"):
        write_checkpoint(tmp_path / "new", {}, frozen, {"epoch": 2, "agent_step": 0})
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("step", ["tensors", "json", "sync", "rename", "digest"])
def test_older_checkpoints_stay_alone_when_a_step_of_saving_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    older = write(tmp_path, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "tensors":
            patch.setattr(safetensors.torch, "save_file", fail)
        elif step == "json":
            patch.setattr(Path, "write_text", fail)
        elif step == "sync":
            patch.setattr(os, "fsync", fail)
        elif step == "rename":
            patch.setattr(Path, "rename", fail)
        else:
            patch.setattr(checkpoint_manifest, "sha256_of", fail)
        with pytest.raises(
            CheckpointError,
            match=r"epoch 2 could not be written .*No space left.*older checkpoints are untouched",
        ):
            write(tmp_path, 2)
    assert names_in(tmp_path) == ["epoch_000001"]
    assert read_checkpoint(older).epoch == 1
    assert write(tmp_path, 2).name == "epoch_000002"


def test_a_checkpoint_error_is_raised_when_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="could not be written"):
        write(tmp_path / "file")


@pytest.mark.parametrize("value", [object(), torch.zeros(2), {1: object()}])
def test_a_checkpoint_error_is_raised_when_metadata_is_not_plain(
    tmp_path: Path, value: Any
) -> None:
    with pytest.raises(CheckpointError, match="metadata must be plain data"):
        write(tmp_path, note=value)
    assert not any(tmp_path.iterdir())


def test_the_score_is_a_number_when_it_came_from_torch(tmp_path: Path) -> None:
    assert read_checkpoint(write(tmp_path, score=torch.tensor(2.5))).score == 2.5


@pytest.mark.parametrize("score", [None, "high", float("inf"), 10**400])
def test_there_is_no_score_when_it_is_no_finite_number(tmp_path: Path, score: Any) -> None:
    assert CheckpointEntry(tmp_path, 1, 1, {"score": score}).score is None


# What a crash leaves.


def test_unfinished_folders_are_ignored_and_swept_when_a_save_crashed(tmp_path: Path) -> None:
    write(tmp_path, 1)
    shutil.copytree(tmp_path / "epoch_000001", tmp_path / ".tmp-1234")
    (tmp_path / "notes").mkdir()
    (tmp_path / "epoch_000009").write_text("a file")
    assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [1]
    prune_checkpoints(tmp_path, keep_last=1)
    assert names_in(tmp_path) == ["epoch_000001", "epoch_000009", "notes"]


def test_the_one_before_is_taken_with_a_warning_when_the_newest_is_damaged(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        write(tmp_path, epoch)
    (tmp_path / "epoch_000003" / "state.json").write_text("{}")
    (tmp_path / "epoch_000002" / "manifest.json").unlink()
    with pytest.warns(MettaWarning, match=r"going back to 'epoch_000001'.*state\.json.*manifest"):
        found = read_newest_checkpoint(tmp_path)
    assert found is not None
    assert found.epoch == 1


def test_a_checkpoint_error_is_raised_when_all_are_damaged(tmp_path: Path) -> None:
    for epoch in (1, 2):
        (write(tmp_path, epoch) / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used"):
        read_newest_checkpoint(tmp_path)


def test_a_checkpoint_error_is_raised_when_the_folder_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to see checkpoints does not mean that there are none: nothing may begin anew."""
    write(tmp_path, 1)

    def fail(_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(CheckpointError, match=r"cannot be searched.*Permission denied"):
        read_newest_checkpoint(tmp_path)
