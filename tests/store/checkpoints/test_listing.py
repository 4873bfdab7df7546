"""What vanishes while it is read is told from what is damaged, and the folder is listed anew."""

from pathlib import Path

import pytest

from metta.errors import CheckpointError
from metta.store.checkpoints.files import (
    checkpoint_folders,
    list_checkpoints,
    read_newest_checkpoint,
    survey_checkpoints,
    write_checkpoint,
)
from metta.store.checkpoints.listing import MAX_LISTINGS, VanishedError, listing_anew, reading
from metta.store.checkpoints.retention import prune_checkpoints
from metta.store.policies.file import FrozenPolicy
from metta.store.policy_store import PolicyStore

ABOUT = {"policy_architecture": "a", "observation_space": {}, "action_space": "c"}


def write(folder: Path, epoch: int) -> Path:
    metadata = {"epoch": epoch, "agent_step": epoch, "score": float(epoch)}
    return write_checkpoint(folder, {}, FrozenPolicy({}, ABOUT), metadata)


class Trainer:
    """Saves and prunes between a reader's listing and its reading."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
        self.folder, self.epoch, self.left = folder, 1, saves
        write(folder, 1)
        for module in ("checkpoints.files", "policy_store"):
            monkeypatch.setattr(f"metta.store.{module}.checkpoint_folders", self.list_then_save)

    def list_then_save(self, folder: Path) -> list[Path]:
        found = checkpoint_folders(folder)
        if self.left and Path(folder) == self.folder:
            self.left, self.epoch = self.left - 1, self.epoch + 1
            write(self.folder, self.epoch)
            for path in found:
                remove(path)
        return found


def remove(path: Path) -> None:
    hidden = path.with_name(".tmp-" + "0" * 32 + path.name)
    path.rename(hidden)


@pytest.mark.parametrize("saves", [1, 2, 7])
def test_the_newer_checkpoint_is_read_when_the_listed_one_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    trainer = Trainer(tmp_path / "run" / "checkpoints", monkeypatch, saves)
    assert [entry.epoch for entry in list_checkpoints(trainer.folder)] == [saves + 1]
    trainer.left = saves
    newest = read_newest_checkpoint(trainer.folder)
    assert newest is not None
    assert newest.epoch == 2 * saves + 1
    for uri in ("run:latest", "run:best", str(tmp_path / "run")):
        trainer.left = saves
        before = trainer.epoch
        assert PolicyStore(tmp_path).find(uri).epoch == before + saves


def test_a_damaged_checkpoint_is_told_of_when_it_is_still_there(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text("{")
    assert survey_checkpoints(tmp_path) == ([], [path])
    with pytest.raises(CheckpointError, match="damaged"), reading(path):
        raise CheckpointError("damaged")
    remove(path)
    with pytest.raises(VanishedError, match="was removed while it was read"), reading(path):
        raise CheckpointError("damaged")


def test_listing_ends_when_everything_vanishes_again_and_again() -> None:
    calls: list[int] = []

    def attempt() -> None:
        calls.append(1)
        raise VanishedError("gone")

    with pytest.raises(VanishedError):
        listing_anew(attempt)
    assert len(calls) == MAX_LISTINGS


def test_a_held_policy_is_read_to_its_end_when_retention_removes_it(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with PolicyStore(tmp_path).hold(tmp_path) as held:
        write(tmp_path, 2)
        prune_checkpoints(tmp_path, keep_last=1)
        assert [path.name for path in checkpoint_folders(tmp_path)] == ["epoch_000002"]
        assert held.record.epoch == 1
        assert held.file.read() == {}
