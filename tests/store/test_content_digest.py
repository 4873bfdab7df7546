"""The digest covers the manifest, and every tensor's name, type, shape and bytes."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from metta.errors import UnsafeFileError
from metta.store.content_digest import CONTENT_KEY, sha256_of_tensors, verify_content
from metta.store.safe_read import open_tensors

MANIFEST = {"format": "x", "metadata": {"b": 1.5, "a": [1]}}


def tensors() -> dict[str, Tensor]:
    return {
        "z": torch.arange(6.0).reshape(2, 3),
        "a": torch.tensor(7, dtype=torch.int16),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "half": torch.ones(5).bfloat16(),
    }


def test_file_and_tensors_agree_when_nothing_changed(tmp_path: Path) -> None:
    digest = sha256_of_tensors(MANIFEST, tensors())
    safetensors.torch.save_file(tensors(), tmp_path / "file")
    with open_tensors(tmp_path / "file") as found:
        verify_content(found, MANIFEST | {CONTENT_KEY: digest})
        verify_content(found, MANIFEST)  # of an old version


OTHERS: dict[str, Any] = {
    "a value": lambda t: t["z"].add_(1),
    "a name": lambda t: t.update(y=t.pop("z")),
    "a type": lambda t: t.update(z=t["z"].view(torch.int32)),
    "a shape": lambda t: t.update(z=t["z"].reshape(3, 2)),
    "an empty shape": lambda t: t.update(empty=torch.zeros(3, 0)),
    "one more": lambda t: t.update(more=torch.zeros(1)),
    "one less": lambda t: t.pop("empty"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_digest_differs_when_anything_of_a_tensor_does(tmp_path: Path, name: str) -> None:
    digest, changed = sha256_of_tensors(MANIFEST, tensors()), tensors()
    OTHERS[name](changed)
    assert sha256_of_tensors(MANIFEST, changed) != digest
    safetensors.torch.save_file(changed, tmp_path / "file")
    with (
        open_tensors(tmp_path / "file") as found,
        pytest.raises(UnsafeFileError, match="sha256 differs"),
    ):
        verify_content(found, MANIFEST | {CONTENT_KEY: digest})


def test_the_digest_differs_when_the_manifest_does() -> None:
    digest = sha256_of_tensors(MANIFEST, {})
    assert sha256_of_tensors(dict(reversed(MANIFEST.items())), {}) == digest
    assert sha256_of_tensors(MANIFEST | {CONTENT_KEY: "itself"}, {}) == digest
    assert sha256_of_tensors(MANIFEST | {"metadata": {"b": 1.5, "a": [2]}}, {}) != digest


def test_a_value_error_names_the_tensor_when_its_type_cannot_be_saved() -> None:
    with pytest.raises(ValueError, match=r"'z' has the type torch\.complex64"):
        sha256_of_tensors({}, {"z": torch.zeros(1, dtype=torch.complex64)})
