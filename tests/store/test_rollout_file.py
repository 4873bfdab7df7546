import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from metta import PPOTrainer
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv, MaskedCorridorEnv, NestedEnv
from metta.errors import RolloutError
from metta.stateful import digest_of
from metta.store import rollout_file
from metta.store.rollout_file import Rollout, load_rollout, save_rollout
from metta.versions import library_versions

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip

KINDS: dict[str, Callable[[], PPOTrainer]] = {
    "plain": lambda: PPOTrainer(None, CorridorEnv, num_envs=3, n_steps=8),
    "continuous": lambda: PPOTrainer(None, ContinuousTargetEnv, num_envs=3, n_steps=8),
    "masked": lambda: PPOTrainer(None, MaskedCorridorEnv, num_envs=3, n_steps=8),
    "nested": lambda: PPOTrainer(None, NestedEnv, num_envs=3, n_steps=8, hidden_size=8),
    "recurrent": lambda: PPOTrainer(
        None, CorridorEnv, num_envs=3, n_steps=8, bptt_horizon=4, core="lstm"
    ),
}


def small() -> dict[str, Tensor]:
    return {"rewards": torch.arange(6.0).reshape(2, 3), "valid": torch.ones(2, 3, dtype=torch.bool)}


def write(path: Path, manifest: Any, tensors: dict[str, Tensor] | None = None) -> Path:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    safetensors.torch.save_file(tensors or small(), path, metadata={"manifest": text})
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_returns_when_a_column_has_any_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.randint(0, 256, (3, 4, 8), dtype=torch.uint8)
    column = (raw > 127) if dtype == torch.bool else raw.view(dtype)
    loaded = load_rollout(save_rollout(tmp_path / "rollout", {"x": column}))
    assert loaded["x"].dtype == dtype
    assert digest_of(loaded["x"]) == digest_of(column)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_returns_bit_for_bit_when_it_was_collected(tmp_path: Path, kind: str) -> None:
    with KINDS[kind]() as trainer:
        data = trainer.collect_rollouts()
    loaded = load_rollout(save_rollout(tmp_path / "rollout.safetensors", data))
    assert loaded.keys() == data.keys()
    assert digest_of(loaded) == digest_of(data)
    assert loaded.manifest == data.manifest


def test_pixels_stay_bytes_when_a_nested_rollout_is_stored(tmp_path: Path) -> None:
    with KINDS["nested"]() as trainer:
        loaded = load_rollout(save_rollout(tmp_path / "r", trainer.collect_rollouts()))
    assert loaded["observations/camera"].dtype == torch.uint8
    assert loaded["observations/state/0"].dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
def test_learning_is_the_same_when_torch_saved_the_data(tmp_path: Path, kind: str) -> None:
    with KINDS[kind]() as first, KINDS[kind]() as second:
        data = first.collect_rollouts()
        stored: Any = load_rollout(save_rollout(tmp_path / "rollout.safetensors", data))
        torch.save(stored, tmp_path / "experience.pt")
        stored = torch.load(tmp_path / "experience.pt", weights_only=True)
        first.learn(data)
        second.learn(stored)
        assert first.policy.parameter_hash() == second.policy.parameter_hash()


def test_the_origin_survives_when_torch_saves_a_rollout(tmp_path: Path) -> None:
    with KINDS["plain"]() as trainer:
        data = trainer.collect_rollouts()
    torch.save(data, tmp_path / "experience.pt")
    loaded = torch.load(tmp_path / "experience.pt", weights_only=True)
    assert loaded.manifest == data.manifest
    assert all(type(column) is Tensor for column in loaded.values())


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_columns_and_origin_survive_when_a_rollout_is_copied(copied: Callable[[Any], Any]) -> None:
    rollout = Rollout(small(), {"seed": 7})
    assert digest_of(copied(rollout)) == digest_of(rollout)
    assert copied(rollout).manifest == {"seed": 7}


def test_the_manifest_says_where_data_comes_from_when_it_is_saved(tmp_path: Path) -> None:
    with KINDS["plain"]() as trainer:
        before = trainer.policy.parameter_hash()
        trainer.collect_rollouts()
        manifest = load_rollout(save_rollout(tmp_path / "r", trainer.collect_rollouts())).manifest
        assert manifest["policy_hash"] == before
        assert manifest["policy_architecture"] == trainer.policy.architecture_hash()
    assert manifest["env_id"] == "CorridorEnv"
    assert manifest["spaces"][1] == "Discrete(2)"
    assert "(8,)" in manifest["spaces"][0]
    assert (manifest["seed"], manifest["rollout"]) == (1, 1)
    assert manifest["versions"] == dict(library_versions())
    assert {"python", "torch", "numpy", "gymnasium", "metta-rl"} == manifest["versions"].keys()


def test_there_is_no_origin_when_columns_are_of_ones_own_making(tmp_path: Path) -> None:
    assert load_rollout(save_rollout(tmp_path / "r", small())).manifest == {}


@pytest.mark.parametrize(
    "shared",
    [
        lambda x: {"a": x, "b": x},
        lambda x: {"a": x[:2], "b": x[1:]},
        lambda x: {"a": x, "b": x.t()},
        lambda x: {"a": x[:, :1].expand(3, 4), "b": x},
    ],
)
def test_columns_return_when_they_share_memory(
    tmp_path: Path, shared: Callable[[Tensor], dict[str, Tensor]]
) -> None:
    data = shared(torch.arange(12.0).reshape(3, 4))
    assert digest_of(load_rollout(save_rollout(tmp_path / "r", data))) == digest_of(data)


def test_gradients_are_left_behind_when_columns_carry_them(tmp_path: Path) -> None:
    data = {"values": torch.ones(2, 2, requires_grad=True) * 2}
    assert not load_rollout(save_rollout(tmp_path / "r", data))["values"].requires_grad


def test_an_empty_rollout_returns_when_it_has_columns(tmp_path: Path) -> None:
    loaded = load_rollout(save_rollout(tmp_path / "r", {"rewards": torch.zeros(0, 4)}))
    assert loaded["rewards"].shape == (0, 4)


def test_saving_is_refused_when_there_are_no_columns(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="without columns"):
        save_rollout(tmp_path / "r", {})


def test_the_old_file_survives_when_saving_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_rollout(tmp_path / "r", small())

    def fail(_tensors: Any, target: Path, **_: Any) -> None:
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(rollout_file.safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_rollout(path, {"rewards": torch.zeros(1, 1)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]
    assert digest_of(load_rollout(path)) == digest_of(small())


def test_the_file_is_unchanged_when_a_loaded_column_is_edited(tmp_path: Path) -> None:
    path = save_rollout(tmp_path / "r", small())
    before = path.read_bytes()
    load_rollout(path)["rewards"].add_(1.0)
    assert path.read_bytes() == before


def test_loaded_columns_stay_when_the_file_is_written_anew(tmp_path: Path) -> None:
    path = save_rollout(tmp_path / "r", small())
    loaded = load_rollout(path)
    save_rollout(path, {"rewards": torch.zeros(2, 3)})
    assert digest_of(loaded) == digest_of(small())


def test_numbers_come_from_disk_when_they_are_used(tmp_path: Path) -> None:
    """Memory of a process that loads 96 MB grows by far less, until it looks at the numbers."""
    big = {name: torch.ones(512, 1024, 24) for name in ("observations", "next_observations")}
    path = save_rollout(tmp_path / "big", big)
    assert path.stat().st_size > 96 << 20
    code = """
import sys
from pathlib import Path
from metta.store.rollout_file import load_rollout
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
loaded = load_rollout(sys.argv[1])
mapped = resident()
total = float(loaded["observations"].sum())
print(mapped - before, resident() - before, total)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    mapped, read, total = (float(number) for number in result.stdout.split())
    assert mapped < 10 << 20
    assert read > 40 << 20
    assert total == 512 * 1024 * 24


def damaged_files(folder: Path) -> dict[str, Path]:
    whole = save_rollout(folder / "whole", small()).read_bytes()
    contents = {
        "empty": b"",
        "garbage": b"\x93not a rollout at all" * 40,
        "huge header": (1 << 62).to_bytes(8, "little") + b"{}",
        "truncated header": whole[:20],
        "truncated data": whole[:-5],
        "too long": whole + b"more",
        "text": b"step,reward\n0,1\n",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    torch.save(small(), folder / "torch file")
    return {name: folder / name for name in [*contents, "torch file"]}


def test_a_rollout_error_explains_when_a_file_is_damaged(tmp_path: Path) -> None:
    for name, path in damaged_files(tmp_path).items():
        with pytest.raises(RolloutError) as caught:
            load_rollout(path)
        message = str(caught.value)
        assert str(path) in message, name
        assert "not a rollout file or is damaged" in message, name
        assert ("metta convert --i-trust-this-file" in message) == (name == "torch file"), name


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


def test_nothing_is_executed_when_a_file_is_a_pickle(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb(canary)))
    torch.save({"x": Bomb(canary)}, tmp_path / "torch")
    for name in ("pickle", "torch"):
        with pytest.raises(RolloutError):
            load_rollout(tmp_path / name)
    assert not canary.exists()
    pickle.loads((tmp_path / "pickle").read_bytes())
    assert canary.exists(), "the bomb is no bomb"


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_rollout_error_names_the_path_when_there_is_no_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(RolloutError, match="there is no rollout file"):
        load_rollout(tmp_path / path)


GOOD = {"format": "metta-rollout", "format_version": 1, "source": {},
        "columns": {"rewards": [2, 3], "valid": [2, 3]}}  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({}, "not a rollout written by save_rollout"),
        ("no json", "not a rollout written by save_rollout"),
        ("[" * 100_000, "not a rollout written by save_rollout"),
        ([], "not a rollout written by save_rollout"),
        (GOOD | {"format": "metta-policy"}, "not a rollout written by save_rollout"),
        (GOOD | {"format_version": None}, "not a rollout written by save_rollout"),
        (GOOD | {"more": 1}, "not a rollout written by save_rollout"),
        (GOOD | {"content_sha256": "0" * 64}, "sha256 differs"),
        (GOOD | {"format_version": float("inf")}, "not a rollout written by save_rollout"),
        (GOOD | {"columns": []}, "not a rollout written by save_rollout"),
        (GOOD | {"source": [1]}, "not a rollout written by save_rollout"),
        ({"format": "metta-rollout", "format_version": 1}, "not a rollout written by save_rollout"),
        (GOOD | {"format_version": 2}, "has rollout format 2, this version of metta reads 1"),
        ({"format": "metta-rollout", "format_version": 9}, "has rollout format 9"),
        (GOOD | {"columns": {"rewards": [2, 3]}}, r"columns \['valid'\] are not as announced"),
        (GOOD | {"columns": GOOD["columns"] | {"x": [1]}}, r"\['x'\] are not as announced"),
        (GOOD | {"columns": GOOD["columns"] | {"valid": [3, 2]}}, "not as announced"),
    ],
)
def test_a_rollout_error_says_why_when_the_manifest_is_not_ours(
    tmp_path: Path, manifest: Any, message: str
) -> None:
    with pytest.raises(RolloutError, match=message):
        load_rollout(write(tmp_path / "r", manifest))


def test_the_file_loads_when_the_manifest_is_ours(tmp_path: Path) -> None:
    assert digest_of(load_rollout(write(tmp_path / "r", GOOD))) == digest_of(small())


def test_a_rollout_error_is_raised_when_there_is_no_manifest(tmp_path: Path) -> None:
    safetensors.torch.save_file(small(), tmp_path / "weights")
    with pytest.raises(RolloutError, match="is a safetensors file, but not a rollout"):
        load_rollout(tmp_path / "weights")


def test_every_flipped_bit_is_found_when_it_lies_anywhere(tmp_path: Path) -> None:
    path = save_rollout(tmp_path / "r", Rollout(small(), {"seed": 7}))
    whole = path.read_bytes()
    for number in range(0, len(whole) * 8, 7):
        flipped = bytearray(whole)
        flipped[number // 8] ^= 1 << number % 8
        path.write_bytes(flipped)
        with pytest.raises(RolloutError):
            load_rollout(path)


def test_a_rollout_error_is_raised_when_booleans_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "r", GOOD)
    content = path.read_bytes()
    assert content.endswith(b"\1" * 6)
    path.write_bytes(content[:-1] + b"\2")
    with pytest.raises(RolloutError, match="'valid' holds bytes that are not booleans"):
        load_rollout(path)


def test_a_rollout_error_names_the_column_when_its_type_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"'x' has the type torch\.complex64"):
        save_rollout(tmp_path / "r", {"x": torch.zeros(1, dtype=torch.complex64)})
    assert not any(tmp_path.iterdir())
