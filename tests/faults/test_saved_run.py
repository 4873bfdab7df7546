"""The examination of a harmed folder finds what is wrong with it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import saved_run
from faults.trial import OK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_run.prepare(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("saved", [None, False])
def test_all_is_well_when_nothing_happened(folder: Path, saved: bool | None) -> None:
    assert saved_run.examine(folder, saved=saved) == (OK, saved_run.digest(saved_run.LATEST))


@pytest.mark.parametrize("saved", [None, True])
def test_all_is_well_when_the_save_went_through(folder: Path, saved: bool | None) -> None:
    assert saved_run.save(folder) == saved_run.SAVED
    names = {path.name for path in folder.iterdir()}
    assert names == {"epoch_000001", "epoch_000003", "epoch_000004"}
    assert saved_run.examine(folder, saved=saved) == (OK, saved_run.digest(saved_run.NEW))


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "policy.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "policy.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda run: shutil.rmtree(run / "epoch_000001"), "must be"),
        (lambda run: shutil.rmtree(run / "epoch_000002"), "must be"),
        (lambda run: shutil.rmtree(run / "epoch_000003"), "must be"),
        (lambda run: flip_a_bit(run / "epoch_000002"), "damaged"),
        (
            lambda run: (run / "epoch_000003" / "manifest.json").unlink(),
            "not a complete checkpoint",
        ),
        (lambda run: (run / "epoch_000004").mkdir(), "not a complete checkpoint"),
        (lambda run: (run / "half").write_text("x"), "are left"),
        (lambda run: shutil.copytree(run / "epoch_000003", run / "epoch_000003.2"), "are left"),
    ],
)
def test_the_harm_is_named_when_something_is_wrong(
    folder: Path, harm: Callable[[Path], object], complaint: str
) -> None:
    harm(folder)
    outcome, digest = saved_run.examine(folder, saved=None)
    assert complaint in outcome
    assert digest is None


def test_the_loss_is_named_when_the_new_checkpoint_should_be_there(folder: Path) -> None:
    assert "must be" in saved_run.examine(folder, saved=True)[0]


def test_the_rest_is_named_when_a_failed_save_left_a_checkpoint(folder: Path) -> None:
    saved_run.save(folder)
    assert "are there" in saved_run.examine(folder, saved=False)[0]


def test_other_numbers_are_noticed_when_a_checkpoint_is_sound_otherwise(folder: Path) -> None:
    shutil.rmtree(folder / "epoch_000003")
    other = saved_run.pending(saved_run.NEXT)
    about = {"epoch": saved_run.LATEST, "agent_step": 0}
    saved_run.write_checkpoint(folder, other.snapshot, other.policy, about)
    assert "other numbers" in saved_run.examine(folder, saved=None)[0]
