"""Pickles of tensors become safetensors in a process that can do little else."""

import pickle
import socket
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from metta.errors import UnsafeFileError
from metta.store.pickle_converter import convert_pickle
from metta.store.unpickling import flatten


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_weights_return_when_a_state_is_converted(tmp_path: Path, new: bool) -> None:
    first, second = nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(3, 4))
    torch.save(first.state_dict(), tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    found = convert_pickle(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert set(found.places) == {"0.weight", "0.bias"}
    second.load_state_dict(safetensors.torch.load_file(tmp_path / "a.safetensors"))
    assert torch.equal(first[0].weight, second[0].weight)


def test_a_part_is_taken_when_the_rest_is_no_tensors(tmp_path: Path) -> None:
    content = {"model": {"inner": {"w": torch.ones(2)}}, "epoch": 3}
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(
        UnsafeFileError, match=r"'epoch' is not a tensor, but of the type int.*--part"
    ):
        convert_pickle(tmp_path / "a.pt", tmp_path / "b")
    with pytest.raises(UnsafeFileError, match=r"no part 'model\.outer'"):
        convert_pickle(tmp_path / "a.pt", tmp_path / "b", part="model.outer")
    assert not (tmp_path / "b").exists()
    convert_pickle(tmp_path / "a.pt", tmp_path / "b", part="model.inner")
    assert safetensors.torch.load_file(tmp_path / "b")["w"].tolist() == [1, 1]


def test_nothing_runs_when_a_pickle_would_run_something(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    torch.save({"w": torch.ones(2), "x": Bomb(canary)}, tmp_path / "bomb.pt")
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(Bomb(canary)))
    for name in ("bomb.pt", "bomb.pkl"):
        with pytest.raises(UnsafeFileError, match="was not converted") as caught:
            convert_pickle(tmp_path / name, tmp_path / "out")
        assert "weights_only=False" not in str(caught.value)
    assert not canary.exists()
    assert not (tmp_path / "out").exists()


def test_the_bounds_hold_when_a_file_asks_for_much_memory(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(2**38)}, tmp_path / "wide.pt")
    with pytest.raises(UnsafeFileError, match="memory"):
        convert_pickle(tmp_path / "wide.pt", tmp_path / "out")


def test_an_unsafe_file_error_is_raised_when_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(
        UnsafeFileError,
        match=r"it is damaged, or not a file of torch\.save|does more than build tensors",
    ):
        convert_pickle(tmp_path / "text", tmp_path / "out")
    with pytest.raises(UnsafeFileError, match="cannot be read"):
        convert_pickle(tmp_path / "nowhere", tmp_path / "out")


def test_tensors_are_named_by_their_path_when_a_tree_is_flattened() -> None:
    tree = OrderedDict(a=[torch.zeros(1), {"b": torch.ones(2)}], c=(nn.Parameter(torch.ones(3)),))
    found = dict(flatten(tree))
    assert {name: len(tensor) for name, tensor in found.items()} == {"a.0": 1, "a.1.b": 2, "c.0": 3}
    assert not found["c.0"].requires_grad
    assert list(dict(flatten(torch.ones(4)))) == ["tensor"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": "text"}, "'a' is not a tensor, but of the type str"),
        (None, "'its content' is not a tensor"),
        ({"a": torch.zeros(2).to_sparse()}, "sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
        ({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}}, "two of its tensors .* 'a.b'"),
    ],
)
def test_an_unsafe_file_error_says_what_was_found_when_it_is_no_plain_tensor(
    tree: Any, message: str
) -> None:
    with pytest.raises(UnsafeFileError, match=message):
        dict(flatten(tree))


def test_nothing_nested_without_end_is_followed_when_a_tree_is_flattened() -> None:
    tree: dict[str, Any] = {}
    tree["x"] = tree
    with pytest.raises(UnsafeFileError, match="not a tensor"):
        dict(flatten(tree))


def test_nobody_answers_when_the_network_was_left() -> None:
    code = (
        "import socket, sys\nfrom metta.store.unpickling import _leave_network\n"
        "print(_leave_network())\nsocket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", code, str(server.getsockname()[1])]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.stdout.strip() != "True":
        pytest.skip("this kernel lets nobody leave its network")
    assert ended.returncode == 1, "the connection was made"
