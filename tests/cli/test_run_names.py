"""A run's name is one folder's: of --run, or of the experiment."""

from pathlib import Path

import pytest

from metta.cli.main import main

NAMES = ["../out", "/tmp/out", "a/b", "..", ".hidden", "", "a b", "x" * 200, "a\nb"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_made_when_a_run_has_no_proper_name(tmp_path: Path, name: str, capsys) -> None:
    output = tmp_path / "runs"
    assert main(["train", "cartpole", f"--run={name}", "--output", str(output)]) == 2
    assert "--run" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_nothing_is_made_when_an_experiment_has_no_proper_name(
    tmp_path: Path, name: str, capsys
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"experiment_name: {name!r}\n".replace("\\n", "\n\n"))
    assert main(["train", str(config), "--output", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert "experiment_name (" in error
    assert f"{config}:1" in error
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
