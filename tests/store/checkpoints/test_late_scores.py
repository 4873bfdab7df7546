"""Scores that come after their checkpoints, in a file beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from metta.errors import CheckpointError, MettaWarning
from metta.files import rename
from metta.store.checkpoints import late_scores
from metta.store.checkpoints.files import (
    checkpoint_folders,
    epoch_of,
    list_checkpoints,
    read_newest_checkpoint,
    write_checkpoint,
)
from metta.store.checkpoints.late_scores import (
    LateScore,
    add_late_score,
    read_late_scores,
    with_late_scores,
)
from metta.store.checkpoints.retention import prune_checkpoints
from metta.store.policies.file import FrozenPolicy
from metta.store.policy_store import PolicyStore

ABOUT = {"policy_architecture": "a", "observation_space": {}, "action_space": "c"}


def write(folder: Path, epoch: int, score: float | None = None) -> Path:
    metadata = {"epoch": epoch, "agent_step": epoch} | ({} if score is None else {"score": score})
    return write_checkpoint(folder, {}, FrozenPolicy({}, ABOUT), metadata)


def epochs_in(folder: Path) -> list[int]:
    return [entry.epoch for entry in list_checkpoints(folder)]


def test_scores_are_read_again_when_they_were_added(tmp_path: Path) -> None:
    assert read_late_scores(tmp_path / "nowhere") == {}
    for epoch in (1, 2, 3):
        write(tmp_path, epoch)
    assert read_late_scores(tmp_path) == {}
    assert add_late_score(tmp_path, 2, 1.5)
    assert add_late_score(tmp_path, 1, -3)
    assert add_late_score(tmp_path, 2, 0.1)
    assert read_late_scores(tmp_path) == {1: LateScore(-3.0), 2: LateScore(0.1)}
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "scores.json"


def test_an_edited_score_is_named_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1)
    add_late_score(tmp_path, 1, 1.5)
    path = tmp_path / "scores.json"
    path.write_text(path.read_text().replace("1.5", "9.5"))
    with pytest.warns(MettaWarning, match=r"scores.json.*sha256 differs"):
        assert read_late_scores(tmp_path) == {}
    about = json.loads(path.read_text())
    del about["sha256"]  # a file of an older version
    path.write_text(json.dumps(about))
    assert read_late_scores(tmp_path) == {1: LateScore(9.5)}


@pytest.mark.parametrize(("epoch", "score"), [(7, 1.0), (1, float("nan")), (1, float("inf"))])
def test_nothing_is_written_when_there_is_nothing_to_score_or_no_score(
    tmp_path: Path, epoch: int, score: float
) -> None:
    write(tmp_path, 1)
    assert not add_late_score(tmp_path, epoch, score)
    assert not (tmp_path / "scores.json").exists()


def test_scores_of_epochs_that_are_gone_are_dropped_when_one_is_written(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        write(tmp_path, epoch)
        add_late_score(tmp_path, epoch, float(epoch))
    prune_checkpoints(tmp_path, keep_last=2)
    assert read_late_scores(tmp_path) == {1: LateScore(1.0), 2: LateScore(2.0), 3: LateScore(3.0)}
    add_late_score(tmp_path, 3, 4.0)
    assert read_late_scores(tmp_path) == {2: LateScore(2.0), 3: LateScore(4.0)}


def test_the_late_score_counts_when_the_checkpoint_has_none(tmp_path: Path) -> None:
    for epoch, score in ((10, None), (20, 5.0), (30, None), (40, None)):
        write(tmp_path / "run" / "checkpoints", epoch, score)
    folder = tmp_path / "run" / "checkpoints"
    for epoch, score in ((10, 9.0), (20, 99.0), (30, 1.0)):
        add_late_score(folder, epoch, score)
    store = PolicyStore(folder)
    assert [record.metadata.get("score") for record in store.list()] == [9.0, 5.0, 1.0, None]
    assert [record.epoch for record in store.top(9)] == [10, 20, 30]
    best = store.best()
    assert best is not None
    assert best.epoch == 10
    found = PolicyStore(tmp_path).find("run:best")
    assert (found.epoch, found.metadata["score"]) == (10, 9.0)
    assert [entry.score for entry in list_checkpoints(folder)] == [None, 5.0, None, None]


def test_the_best_stays_when_its_score_came_late(tmp_path: Path) -> None:
    for epoch in (1, 2, 3, 4):
        write(tmp_path, epoch)
    add_late_score(tmp_path, 2, 7.0)
    add_late_score(tmp_path, 3, 1.0)
    prune_checkpoints(tmp_path, keep_last=1)
    assert epochs_in(tmp_path) == [2, 4]


def test_the_best_is_known_to_be_good_when_scores_have_bounds(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        write(tmp_path, epoch)
    add_late_score(tmp_path, 1, 10.0, 4.0)
    add_late_score(tmp_path, 2, 9.0, 8.0)
    add_late_score(tmp_path, 3, 7.0, float("nan"))
    assert read_late_scores(tmp_path)[3] == LateScore(7.0)
    # what is known of some only cannot be compared
    assert [record.epoch for record in PolicyStore(tmp_path).top(3)] == [1, 2, 3]
    add_late_score(tmp_path, 3, 7.0, 6.0)
    assert [record.epoch for record in PolicyStore(tmp_path).top(3)] == [2, 3, 1]
    prune_checkpoints(tmp_path, keep_last=1, keep_epochs={1})
    assert epochs_in(tmp_path) == [1, 2, 3]
    prune_checkpoints(tmp_path, keep_last=1)
    assert epochs_in(tmp_path) == [2, 3]


BAD: dict[str, Any] = {
    "torn": '{"format": "metta-la',
    "empty": "",
    "a list": [],
    "another file": {"format": "other", "format_version": 1, "scores": {}},
    "another version": {"format": "metta-late-scores", "format_version": 2, "scores": {}},
    "no mapping": {"format": "metta-late-scores", "format_version": 1, "scores": [1.0]},
    "a text": {"format": "metta-late-scores", "format_version": 1, "scores": {"1": ["high", None]}},
    "no epoch": {"format": "metta-late-scores", "format_version": 1, "scores": {"-1": [1.0, None]}},
    "no digits": {
        "format": "metta-late-scores",
        "format_version": 1,
        "scores": {"\u00b2": [1.0, None]},
    },
    "no bound": {"format": "metta-late-scores", "format_version": 1, "scores": {"1": [1.0, "low"]}},
    "no pair": {"format": "metta-late-scores", "format_version": 1, "scores": {"1": 1.0}},
    "a long epoch": {
        "format": "metta-late-scores",
        "format_version": 1,
        "scores": {"1" * 40: [1.0, None]},
    },
    "too deep": "[" * 100,
    "too large": " " * (2**20 + 1),
    "a pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("name", BAD)
def test_checkpoints_are_read_as_before_when_the_file_is_damaged(tmp_path: Path, name: str) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, 3.0)
    bad, file = BAD[name], tmp_path / "scores.json"
    file.write_bytes(
        bad
        if isinstance(bad, bytes)
        else (bad if isinstance(bad, str) else json.dumps(bad)).encode()
    )
    with pytest.warns(MettaWarning, match=r"late scores are left out.*scores\.json"):
        best = PolicyStore(tmp_path).best()
    assert best is not None
    assert best.epoch == 2
    newest = read_newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.epoch == 2
    with pytest.warns(MettaWarning, match="late scores are left out"):
        assert prune_checkpoints(tmp_path, keep_last=2) == []
    with pytest.warns(MettaWarning, match="late scores are left out"):
        assert add_late_score(tmp_path, 1, 5.0)
    assert read_late_scores(tmp_path) == {1: LateScore(5.0)}


def test_a_link_or_folder_is_left_out_when_it_lies_in_the_place_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    add_late_score(tmp_path / "a", 1, 5.0)
    write(tmp_path / "b", 1)
    (tmp_path / "b" / "scores.json").symlink_to(tmp_path / "a" / "scores.json")
    write(tmp_path / "c", 1)
    (tmp_path / "c" / "scores.json").mkdir()
    for name in ("b", "c"):
        with pytest.warns(MettaWarning, match="late scores are left out"):
            assert read_late_scores(tmp_path / name) == {}
    with (
        pytest.warns(MettaWarning, match="late scores"),
        pytest.raises(CheckpointError, match="checkpoints are untouched"),
    ):
        add_late_score(tmp_path / "c", 1, 2.0)
    assert epochs_in(tmp_path / "c") == [1]


def test_the_old_scores_stay_when_writing_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    add_late_score(tmp_path, 1, 5.0)

    def fail(source: Path, target: Path) -> None:
        if target.name == "scores.json":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("metta.files.rename", fail)
    with pytest.raises(CheckpointError, match=r"epoch 1 could not be written.*No space left"):
        add_late_score(tmp_path, 1, 6.0)
    assert read_late_scores(tmp_path) == {1: LateScore(5.0)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch_000001", "scores.json"]


def test_the_file_is_not_read_when_every_checkpoint_has_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, 2.0)
    monkeypatch.setattr(late_scores, "read_late_scores", None)
    assert [entry.score for entry in with_late_scores(tmp_path, list_checkpoints(tmp_path))] == [
        2.0
    ]


def test_the_epoch_is_in_the_name_when_a_folder_is_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 12)
    write(tmp_path, 12)
    assert [epoch_of(path) for path in checkpoint_folders(tmp_path)] == [12, 12]
    with pytest.raises(ValueError, match="not a name of a checkpoint"):
        epoch_of(tmp_path / "notes")
