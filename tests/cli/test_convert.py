"""`metta convert` asks first, and refuses what is not tensors."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from metta.cli.convert import run
from metta.cli.main import build_parser, main
from metta.errors import ConfigError


def test_a_file_is_converted_when_the_user_trusts_it(tmp_path: Path, capsys) -> None:
    torch.save({"model": {"w": torch.ones(3)}, "epoch": 1}, tmp_path / "a.pt")
    words = ["convert", "--i-trust-this-file", "--part", "model"]
    assert main([*words, str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]) == 0
    assert "wrote 1 tensors (12 bytes)" in capsys.readouterr().out
    assert safetensors.torch.load_file(tmp_path / "b.safetensors")["w"].tolist() == [1, 1, 1]


def test_nothing_is_read_when_the_user_does_not_say_that_they_trust_the_file(
    tmp_path: Path, capsys
) -> None:
    assert main(["convert", str(tmp_path / "nowhere.pt"), str(tmp_path / "b")]) == 2
    assert "--i-trust-this-file" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_file_stays_when_it_lies_where_the_result_would_go(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    options = build_parser().parse_args(
        ["convert", "--i-trust-this-file", str(tmp_path / "a.pt"), str(tmp_path / "b")]
    )
    with pytest.raises(ConfigError, match="exists already"):
        run(options)
    assert (tmp_path / "b").read_text() == "mine"


def test_the_exit_code_is_one_when_a_file_holds_more_than_tensors(tmp_path: Path, capsys) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "a.pt")
    words = ["convert", "--i-trust-this-file", str(tmp_path / "a.pt"), str(tmp_path / "b")]
    assert main(words) == 1
    assert "it asks to run torch.nn.modules.linear.Linear" in capsys.readouterr().err
