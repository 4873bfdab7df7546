"""Which checkpoints stay, and that none that is whole goes for one that is not."""

import shutil
from pathlib import Path

import pytest

from metta.errors import MettaWarning
from metta.stateful import digest_of
from metta.store.checkpoints.files import (
    checkpoint_folders,
    list_checkpoints,
    new_run_id,
    read_checkpoint,
    write_checkpoint,
)
from metta.store.checkpoints.retention import best_of, prune_checkpoints
from metta.store.policies.file import FrozenPolicy


def write(folder: Path, epoch: int, score: float | None = None) -> Path:
    about = {"policy_architecture": "a", "policy_hash": "b", "action_space": "c"}
    metadata = {"epoch": epoch, "agent_step": epoch} | ({} if score is None else {"score": score})
    return write_checkpoint(folder, {}, FrozenPolicy({}, about), metadata)


def damage(path: Path) -> None:
    """Flip a bit; the size stays."""
    content = bytearray((path / "state.json").read_bytes())
    content[0] ^= 1
    (path / "state.json").write_bytes(content)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def epochs_in(folder: Path) -> list[int]:
    return [entry.epoch for entry in list_checkpoints(folder)]


@pytest.mark.parametrize(
    ("scores", "rule", "expected"),
    [
        (dict.fromkeys(range(1, 6)), {"keep_last": 2}, [4, 5]),
        (dict.fromkeys(range(1, 6)), {"keep_last": 0}, [5]),
        (dict.fromkeys(range(1, 8)), {"keep_last": 1, "keep_every": 3}, [3, 6, 7]),
        ({1: 5.0, 2: 9.0, 3: 1.0, 4: None}, {"keep_last": 1}, [2, 4]),
        ({1: 5.0, 2: 5.0, 3: None}, {"keep_last": 1}, [2, 3]),
        ({1: -5.0, 2: float("nan"), 3: None}, {"keep_last": 1}, [1, 3]),
    ],
)
def test_only_what_the_rule_names_is_kept_when_checkpoints_are_pruned(
    tmp_path: Path, scores: dict[int, float | None], rule: dict[str, int], expected: list[int]
) -> None:
    for epoch, score in scores.items():
        write(tmp_path, epoch, score)
    removed = prune_checkpoints(tmp_path, **rule)
    assert epochs_in(tmp_path) == expected
    assert all(name.startswith("epoch_") for name in names_in(tmp_path))
    assert len(removed) == len(scores) - len(expected)


def test_nothing_happens_when_the_folder_does_not_exist(tmp_path: Path) -> None:
    assert prune_checkpoints(tmp_path / "nowhere", keep_last=1) == []
    assert names_in(tmp_path) == []


def test_nothing_is_best_when_nothing_was_scored(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert best_of(list_checkpoints(tmp_path)) is None


# Damaged ones do not count.


def test_a_whole_one_stays_when_newer_ones_are_damaged(tmp_path: Path) -> None:
    paths = [write(tmp_path, epoch) for epoch in (1, 2, 3, 4)]
    damage(paths[2])
    (paths[1] / "manifest.json").write_text("{}")
    with pytest.warns(MettaWarning, match=r"\['epoch_000002', 'epoch_000003'\] .* cannot be read"):
        assert prune_checkpoints(tmp_path, keep_last=2, newest=paths[3]) == []
    assert len(checkpoint_folders(tmp_path)) == 4
    assert read_checkpoint(paths[0]).epoch == 1


def test_damaged_ones_go_when_enough_newer_ones_are_whole(tmp_path: Path) -> None:
    damage(write(tmp_path, 1))
    for epoch in (2, 3, 4):
        write(tmp_path, epoch)
    prune_checkpoints(tmp_path, keep_last=2)
    assert epochs_in(tmp_path) == [3, 4]


def test_the_second_best_stays_when_the_best_is_damaged(tmp_path: Path) -> None:
    damage(write(tmp_path, 1, score=9.0))
    for epoch, score in ((2, 5.0), (3, 1.0), (4, None)):
        write(tmp_path, epoch, score)
    with pytest.warns(MettaWarning, match="epoch_000001"):
        prune_checkpoints(tmp_path, keep_last=1)
    assert epochs_in(tmp_path) == [1, 2, 4]


def test_the_first_of_an_epoch_stays_when_the_second_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, 5)
    damage(write(tmp_path, 5))
    with pytest.warns(MettaWarning, match=r"epoch_000005\.2"):
        prune_checkpoints(tmp_path, keep_last=1)
    assert names_in(tmp_path) == ["epoch_000005", "epoch_000005.2"]


def test_the_one_just_written_stays_when_older_ones_have_higher_epochs(tmp_path: Path) -> None:
    for epoch in (7, 8, 9):
        write(tmp_path, epoch)
    newest = write(tmp_path, 3)
    prune_checkpoints(tmp_path, keep_last=2, newest=newest)
    assert epochs_in(tmp_path) == [3, 8, 9]


# Leftovers, links and failures.


def test_leftovers_are_swept_when_a_crash_left_them(tmp_path: Path) -> None:
    path, other = write(tmp_path, 1), new_run_id()
    shutil.copytree(path, tmp_path / ".tmp-1234")
    shutil.copytree(path, tmp_path / f".tmp-{other}-1234")
    (tmp_path / "notes").mkdir()
    assert prune_checkpoints(tmp_path, keep_last=1) == []
    assert names_in(tmp_path) == [f".tmp-{other}-1234", "epoch_000001", "notes"]
    assert prune_checkpoints(tmp_path, keep_last=1, run_id=other) == []
    assert names_in(tmp_path) == ["epoch_000001", "notes"]


def test_what_a_link_points_to_is_left_alone_when_checkpoints_are_pruned(tmp_path: Path) -> None:
    outside = write(tmp_path / "elsewhere", 1)
    folder = tmp_path / "checkpoints"
    write(folder, 2)
    (folder / "epoch_000001").symlink_to(outside)
    (folder / ".tmp-link").symlink_to(outside)
    before = digest_of(read_checkpoint(outside).snapshot)
    prune_checkpoints(folder, keep_last=1)
    assert names_in(folder) == [".tmp-link", "epoch_000001", "epoch_000002"]
    assert digest_of(read_checkpoint(outside).snapshot) == before


def test_a_checkpoint_loses_its_name_first_when_its_removal_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> None:
        (path / "state.json").unlink()
        raise OSError(5, "Input/output error")

    for epoch in (1, 2):
        write(tmp_path, epoch)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(OSError, match="Input/output"):
            prune_checkpoints(tmp_path, keep_last=1)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["epoch_000002"]
    prune_checkpoints(tmp_path, keep_last=1)
    assert names_in(tmp_path) == ["epoch_000002"]


def test_only_checkpoints_of_the_own_run_are_removed_when_others_lie_beside_them(
    tmp_path: Path,
) -> None:
    own, other = new_run_id(), new_run_id()
    for epoch, run_id in ((1, own), (2, other), (3, None), (4, other), (5, own), (6, own)):
        metadata = {"epoch": epoch, "agent_step": epoch}
        about = {"policy_architecture": "a", "observation_space": {}, "action_space": "c"}
        write_checkpoint(tmp_path, {}, FrozenPolicy({}, about), metadata, run_id=run_id)
    (tmp_path / ".tmp-notes").mkdir()
    (tmp_path / ".tmp-notes" / "mine.txt").write_text("keep me")
    removed = prune_checkpoints(tmp_path, keep_last=1, run_id=own)
    assert [path.name for path in removed] == ["epoch_000001", "epoch_000005"]
    assert [entry.epoch for entry in list_checkpoints(tmp_path)] == [2, 3, 4, 6]
    assert (tmp_path / ".tmp-notes" / "mine.txt").exists()


@pytest.mark.parametrize("name", ["film.mp4", "state.json"])
def test_a_folder_without_a_manifest_stays_when_it_has_the_name_of_a_checkpoint(
    tmp_path: Path, name: str
) -> None:
    """It may be one of another run that somebody copies here at the moment."""
    film = tmp_path / "epoch_000000" / name
    film.parent.mkdir()
    film.write_bytes(b"x")
    write(tmp_path, 1)
    with pytest.warns(MettaWarning, match="epoch_000000"):
        prune_checkpoints(tmp_path, keep_last=1)
    assert film.read_bytes() == b"x"
