"""Modules planted in a run's folder; ``python -m faults.run --only planted_code`` plants everything."""

from pathlib import Path

import pytest

from faults import planted_code
from faults.second_user import can_change_user
from faults.trial import OK
from metta.cli.main import main
from metta.rl.compiled.cache import compiler_name


def train_here(folder: Path) -> Path:
    words = ["train", "CartPole-v1", "--output", str(folder), "--run", "run"]
    assert main([*words, *planted_code.SMALL, *planted_code.WORKING]) == 0
    return folder / "run"


def test_no_module_of_a_run_folder_runs_when_it_is_resumed_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted_code, "trained_run", train_here)  # nothing is planted yet
    found = list(planted_code.trials(1, 1, tmp_path))
    assert len(found) > 300
    assert [trial for trial in found if trial.outcome != OK] == []


@pytest.mark.slow
@pytest.mark.skipif(not can_change_user(), reason="only root can act as a second user")
@pytest.mark.skipif(compiler_name() is None, reason="needs a C++ compiler")
def test_nothing_of_a_second_user_is_compiled_or_loaded(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):  # pytest's folders keep the second user out
        if place.stat().st_mode & 0o77 == 0:
            place.chmod(0o711)
    found = [*planted_code.headers(tmp_path), *planted_code.parents(tmp_path)]
    assert len(found) > 40
    assert [(point, outcome) for point, outcome in found if outcome != OK] == []


@pytest.mark.slow
@pytest.mark.skipif(compiler_name() is None, reason="needs a C++ compiler")
def test_a_planted_package_does_run_where_its_folder_is_trusted(tmp_path: Path) -> None:
    """What the campaign plants is code: without the refusal it would have been seen."""
    words = ["train", "CartPole-v1", "--output", str(tmp_path), *planted_code.SMALL]
    words += planted_code.COMPILED
    assert planted_code.metta(words, tmp_path, tmp_path).returncode == 0
    [package] = (tmp_path / "cache" / "graphs").glob("*.pt2")
    canary = tmp_path / "canary"
    planted_code.plant_package(planted_code.with_code(package, canary, tmp_path), package)
    planted_code.metta(words, tmp_path, tmp_path)
    assert canary.exists()
