"""What holds code is told by its content."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from metta.errors import UnsafeFileError
from metta.untrusted.files import open_regular, refuse_code

DATA = {"weights": [1.5, 2, "text"], "name": print}


def torch_bytes(new: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(DATA))
    return buffer.getvalue()


def tar_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("data.pkl"))
    return buffer.getvalue()


def numpy_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}, None], dtype=object), allow_pickle=True)
    return buffer.getvalue()


KINDS = {f"protocol {number}": pickle.dumps(DATA, number) for number in range(6)}
KINDS |= {f"plain protocol {number}": pickle.dumps([1, "a"], number) for number in range(6)}
KINDS |= {
    "zip": zip_bytes(),
    "zip behind other bytes": b"\x89" * 999 + zip_bytes(),
    "tar": tar_bytes(),
    "numpy objects": numpy_bytes(),
    "torch zip": torch_bytes(True),
    "torch legacy": torch_bytes(False),
    "gzip": gzip.compress(pickle.dumps(DATA)),
    "bz2": bz2.compress(pickle.dumps(DATA)),
    "xz": lzma.compress(pickle.dumps(DATA)),
}


def refuse_file(path: Path) -> None:
    with open_regular(path) as (stream, size):
        refuse_code(path, stream, size)
        assert stream.tell() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_code_is_refused_by_its_content_when_it_has_another_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(KINDS[kind])
    with pytest.raises(UnsafeFileError, match="metta convert --i-trust-this-file") as caught:
        refuse_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0x0280, 0x0480, 0x9C78, 0x8B1F, 0x4B50])
def test_a_tensor_file_passes_when_its_first_bytes_look_like_a_pickle(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / "file"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    header = path.read_bytes()[8:-8].ljust(length)
    path.write_bytes(length.to_bytes(8, "little") + header + bytes(8))
    refuse_file(path)
    assert safetensors.torch.load_file(path)["a"].tolist() == [0, 0]


def test_data_passes_when_it_is_json_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("", "{}", "[]", json.dumps({"c": "os\nsystem\n."}), json.dumps([1], indent=1)):
        path.write_text(content)
        refuse_file(path)
