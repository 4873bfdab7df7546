"""Headers of tensor files are measured before anything is taken in."""

import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hostile_files import entry, tensor_bytes, write_tensors

from metta.errors import UnsafeFileError
from metta.store import safe_read
from metta.store.safe_read import DTYPES, check_tensor_file, read_json, read_tensors


def test_every_type_returns_in_memory_of_its_own_when_a_file_is_sound(tmp_path: Path) -> None:
    raw = torch.randint(0, 256, (3, 4, 8), dtype=torch.uint8)
    tensors = {
        name: raw > 127 if dtype == torch.bool else raw.view(dtype)
        for name, dtype in DTYPES.items()
    } | {"scalar": torch.tensor(7), "empty": torch.zeros(0, 5)}
    path = tmp_path / "file"
    safetensors.torch.save_file({k: v.clone() for k, v in tensors.items()}, path, {"a": "b"})
    found, metadata = read_tensors(path)
    assert metadata == {"a": "b"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert bytes(found[name].reshape(-1).view(torch.uint8)) == bytes(
            tensor.reshape(-1).view(torch.uint8)
        )
    path.write_bytes(bytes(path.stat().st_size))  # in place: what is mapped would change
    assert torch.equal(found["U8"], raw)


def test_places_are_those_of_the_bytes_when_a_file_is_checked(tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "file",
        {"b": entry("I16", [4], [24, 32]), "a": entry()},
        bytes(24) + bytes(range(8)),
    )
    found = check_tensor_file(path)
    assert found.data_bytes == 32
    assert found.places["a"][:2] == ("F32", (2, 3))
    assert path.read_bytes()[found.places["b"].begin : found.places["b"].end] == bytes(range(8))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the whole file has 0"),
    "seven bytes": (b"\2\0\0\0\0\0\0", "the whole file has 7"),
    "a header beyond the end": (tensor_bytes({"a": entry()}, length=2**63), str(2**63)),
    "a header of one more byte": (tensor_bytes("{}", b"", length=3), "should have 3 bytes"),
    "a header of 9 MB": (tensor_bytes("{}" + " " * 9_000_000), "more than 8388608"),
    "no JSON": (tensor_bytes("{no"), "is not a safetensors file, or is damaged"),
    "no UTF-8": (b"\4\0\0\0\0\0\0\0{\"\xff\"", "damaged"),
    "a list": (tensor_bytes([]), "not a JSON object"),
    "a deep header": (tensor_bytes('{"a":' + "[" * 40), "deeper than 32"),
    "a million entries": (tensor_bytes('{"":{},' * 600_000), "more than 500000 values"),
    "many tensors": (
        tensor_bytes({str(i): entry("U8", [0], [0, 0]) for i in range(20_001)}, b""),
        "20001 tensors",
    ),
    "a tensor twice": (tensor_bytes('{"a":%s,"a":%s}' % (("{}",) * 2)), "'a' occurs twice"),
    "metadata that is a list": (tensor_bytes({"__metadata__": []}), "metadata"),
    "metadata with a number": (tensor_bytes({"__metadata__": {"a": 1}}), "metadata"),
    "an entry that is a text": (tensor_bytes({"a": "x"}), "not described"),
    "an entry with more": (tensor_bytes({"a": entry() | {"x": 1}}), "not described"),
    "an unknown type": (tensor_bytes({"a": entry("C64", [3])}), "the type 'C64'"),
    "a type that is a list": (tensor_bytes({"a": entry(["F32"])}), "the type"),
    "another type": (tensor_bytes({"a": entry("F64")}), "does not fill"),
    "a negative size": (tensor_bytes({"a": entry(shape=[-2, -3])}), "no shape"),
    "a size that is true": (tensor_bytes({"a": entry(shape=[True, 6])}), "no shape"),
    "a size with a point": (tensor_bytes({"a": entry(shape=[6.0])}), "no shape"),
    "too many sizes": (tensor_bytes({"a": entry(shape=[6] + [1] * 32)}), "no shape"),
    "a shape that overflows": (
        tensor_bytes({"a": entry(shape=[2**32, 2**32, 6])}),
        "impossible shape",
    ),
    "an overflow behind a zero": (
        tensor_bytes({"a": entry(shape=[0, 2**59, 2**59], offsets=[0, 0])}, b""),
        "impossible shape",
    ),
    "a number without end": (tensor_bytes('{"a":{"shape":[%s]}}' % ("9" * 101)), "101 digits"),
    "three offsets": (tensor_bytes({"a": entry(offsets=[0, 24, 24])}), "two offsets"),
    "offsets that are texts": (tensor_bytes({"a": entry(offsets=["0", "24"])}), "two offsets"),
    "offsets backwards": (tensor_bytes({"a": entry(offsets=[24, 0])}), "does not fill"),
    "offsets beyond the end": (tensor_bytes({"a": entry(offsets=[24, 48])}), "leave a gap"),
    "an overlap": (tensor_bytes({"a": entry(), "b": entry()}), "overlap"),
    "a gap": (
        tensor_bytes({"a": entry(), "b": entry(offsets=[25, 49])}, bytes(49)),
        "leave a gap",
    ),
    "more data": (tensor_bytes({"a": entry()}, bytes(25)), "end at byte"),
    "less data": (tensor_bytes({"a": entry()}, bytes(23)), "end at byte"),
    "false booleans": (tensor_bytes({"a": entry("BOOL", [2], [0, 2])}, b"\1\2"), "not booleans"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_an_unsafe_file_error_says_why_when_a_header_lies(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UnsafeFileError, match=message) as caught:
        read_tensors(path)
    assert repr(str(path)) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_nothing_is_allocated_when_tensors_are_larger_than_the_memory(tmp_path: Path) -> None:
    size = 2**42
    header = {"a": entry("U8", [size], [0, size])}
    path = write_tensors(tmp_path / "file", header, b"")
    try:
        os.truncate(path, path.stat().st_size + size)  # holes, not bytes
    except OSError:
        pytest.skip("this file system has no files of 4 TB")
    with pytest.raises(UnsafeFileError, match="bytes of memory are free"):
        read_tensors(path)


@pytest.mark.parametrize("read", [read_tensors, check_tensor_file, read_json])
def test_a_link_is_refused_when_it_must_be_a_file(tmp_path: Path, read: Any) -> None:
    write_tensors(tmp_path / "file", {"a": entry()})
    (tmp_path / "file.json").write_text("[1]")
    (tmp_path / "link").symlink_to("file.json" if read is read_json else "file")
    assert read(tmp_path / "link")
    with pytest.raises(UnsafeFileError, match="is a symbolic link; use a regular file"):
        read(tmp_path / "link", follow_symlink=False)


@pytest.mark.parametrize("read", [read_tensors, check_tensor_file, read_json])
def test_no_reader_waits_when_a_file_is_a_pipe_or_missing(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UnsafeFileError, match="not a regular file"):
            read(tmp_path / name)
    for name in ("nowhere", "nul\0", "x" * 300):
        with pytest.raises(UnsafeFileError, match="cannot be read"):
            read(tmp_path / name)


def test_the_limits_are_those_that_were_promised_when_they_are_read() -> None:
    limits = safe_read.MAX_HEADER_BYTES, safe_read.MAX_TENSORS
    assert limits == (8 * 2**20, 20_000)
