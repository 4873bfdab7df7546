"""`metta convert` asks first, and refuses what is not tensors."""

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from metta.cli.commands.convert import run
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


def test_convert_never_passes_on_the_advice_to_read_a_file_without_restrictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = b"\x80\x02" + b"cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."
    files = {
        "program.pkl": program,
        "protocol.pkl": pickle.dumps({"w": [1.0]}, protocol=5),
        "extension.pkl": b"\x80\x02\x82\x01.",
        "damaged.pt": b"PK\x03\x04" + bytes(100),
        "text.pt": b"not a pickle at all",
        "empty.pt": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for file in sorted(tmp_path.iterdir()):
        words = ["convert", "--i-trust-this-file", str(file), str(tmp_path / "out")]
        assert main(words) == 1, file.name
        said = capsys.readouterr().err
        assert "was not converted: " in said, file.name
        assert not any(word in said for word in ("weights_only", "Weights only", "torch.load")), (
            said
        )
