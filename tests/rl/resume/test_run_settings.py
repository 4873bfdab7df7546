"""What a run's folder says of its settings; `tests/cli/test_restored_settings.py` tries the command."""

import json
from pathlib import Path

import pytest

from metta.errors import MettaWarning
from metta.rl.resume.run_settings import own_parts, write_settings
from metta.store.run_directory import RunDirectory
from metta.train.train_config import TrainingConfig

ABOUT = {"id": "0" * 32, "settings_sha256": "f" * 64, "own_environment": None, "own_policy": "Net"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path)
    write_settings(directory, TrainingConfig(), ABOUT, {"settings": {}, "a": 1}, resumes=False)
    return directory


def test_digests_of_a_run_are_not_taken_for_secrets(run: RunDirectory) -> None:
    assert json.loads(run.about_file.read_text()) == {**ABOUT, "settings_sha256_before": None}


def test_provenance_keeps_what_was_stored_when_a_run_resumes(run: RunDirectory) -> None:
    write_settings(run, TrainingConfig(), ABOUT, {"settings": {}}, resumes=True)
    assert json.loads(run.provenance_file.read_text())["a"] == 1


def test_damaged_provenance_is_written_anew_with_a_warning(run: RunDirectory) -> None:
    run.provenance_file.write_text("[]")
    with pytest.warns(MettaWarning, match="holds a list; its content is ignored"):
        write_settings(run, TrainingConfig(), ABOUT, {"settings": {}}, resumes=True)
    assert json.loads(run.provenance_file.read_text()) == {"settings": {}}


def test_own_parts_are_those_that_settings_do_not_describe() -> None:
    assert own_parts({**ABOUT, "name": "first"}) == {"own_environment": None, "own_policy": "Net"}
