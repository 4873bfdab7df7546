import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from metta import files
from metta.files import (
    atomic_write,
    commit_folder,
    make_durable,
    make_folders,
    remove_folders,
    sha256_of,
    temporary_beside,
    write_durably,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_new(path: Path) -> None:
    path.write_text("new")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk, in order."""
    done: list[str] = []

    def watch(name: str) -> None:
        original = getattr(files, name)

        def operate(path: Path, *others: Any) -> None:
            done.append(f"{name} {path.name}")
            original(path, *others)

        monkeypatch.setattr(files, name, operate)

    for name in ("make_durable", "make_folder", "rename", "remove_tree", "remove_file"):
        watch(name)
    return done


# One file.


def test_the_file_holds_what_was_written_when_all_goes_well(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "note.txt", write_new)
    assert target == tmp_path / "note.txt"
    assert target.read_text() == "new"
    assert names_in(tmp_path) == ["note.txt"]


def test_folders_are_made_when_they_are_missing(tmp_path: Path) -> None:
    target = atomic_write(str(tmp_path / "a" / "b" / "note"), lambda path: path.touch())
    assert target.is_file()


def test_the_old_file_is_replaced_when_it_exists(tmp_path: Path) -> None:
    target = tmp_path / "note"
    target.write_text("old")
    atomic_write(target, write_new)
    assert target.read_text() == "new"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_the_old_file_survives_alone_when_writing_fails_in_the_middle(
    tmp_path: Path, error: BaseException
) -> None:
    target = tmp_path / "note"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("ha")
        raise error

    with pytest.raises(type(error)):
        atomic_write(target, fail)
    assert target.read_text() == "old"
    assert names_in(tmp_path) == ["note"]


def test_nothing_is_left_when_the_first_write_fails(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("ha")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        atomic_write(tmp_path / "note", fail)
    assert names_in(tmp_path) == []


def test_the_first_error_is_told_when_cleaning_up_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_write(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no room")

    def fail_to_remove(_: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(files, "remove_file", fail_to_remove)
    with pytest.raises(OSError, match="no room"):
        atomic_write(tmp_path / "note", fail_to_write)


def test_readers_see_the_old_file_when_a_write_is_under_way(tmp_path: Path) -> None:
    target = tmp_path / "note.safetensors"
    target.write_text("old")

    def look(path: Path) -> None:
        path.write_text("new")
        assert target.read_text() == "old"
        assert path.parent == target.parent  # the same file system, or the rename is no rename
        assert list(tmp_path.glob("*.safetensors")) == [target]  # who lists files sees whole ones

    atomic_write(target, look)


def test_the_new_file_is_durable_before_it_gets_its_name(tmp_path: Path, steps: list[str]) -> None:
    atomic_write(tmp_path / "a" / "note", write_new)
    temporary = steps[2].split()[1]
    assert temporary.startswith(".tmp-")
    assert steps == [
        "make_folder a",
        f"make_durable {tmp_path.name}",
        f"make_durable {temporary}",
        f"rename {temporary}",
        "make_durable a",
    ]


def test_the_checksum_is_that_of_the_bytes_when_a_file_is_large(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "data").write_bytes(content)
    assert sha256_of(tmp_path / "data") == hashlib.sha256(content).hexdigest()


# Waiting for the disk.


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_an_error_is_raised_when_a_file_cannot_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail_to_sync(monkeypatch, number)
    with pytest.raises(OSError, match="sync failed"):
        write_durably(tmp_path / "note", write_new)


def test_an_error_is_raised_when_a_folder_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_sync(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="sync failed"):
        make_durable(tmp_path)


def test_folders_are_not_waited_for_when_the_file_system_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_sync(monkeypatch, errno.EINVAL)
    make_durable(tmp_path)


def fail_to_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(_: int) -> None:
        raise OSError(number, "sync failed")

    monkeypatch.setattr(os, "fsync", fail)


def test_each_folder_is_durable_before_the_next_when_several_are_made(
    tmp_path: Path, steps: list[str]
) -> None:
    make_folders(tmp_path / "a" / "b")
    assert steps == [
        "make_folder a",
        f"make_durable {tmp_path.name}",
        "make_folder b",
        "make_durable a",
    ]
    make_folders(tmp_path / "a" / "b")
    assert len(steps) == 4


# One folder.


def numbered(root: Path) -> Path:
    """The first free name: 1, 2, ..."""
    return next(path for n in range(1, 9) if not os.path.lexists(path := root / str(n)))


def fill(folder: Path) -> None:
    write_durably(folder / "note", write_new)


def commit(root: Path, **changed: Any) -> Path:
    parts: dict[str, Any] = {"fill": fill, "verify": lambda path: None, **changed}
    return commit_folder(lambda: numbered(root), **parts)


def test_a_folder_appears_whole_and_durable_when_it_is_committed(
    tmp_path: Path, steps: list[str]
) -> None:
    verified: list[tuple[Path, str]] = []
    target = commit(
        tmp_path / "made", verify=lambda path: verified.append((path, (path / "note").read_text()))
    )
    assert verified == [(tmp_path / "made" / "1", "new")]
    assert target == tmp_path / "made" / "1"
    temporary = steps[2].split()[1]
    assert steps == [
        "make_folder made",
        f"make_durable {tmp_path.name}",
        f"make_folder {temporary}",
        "make_durable note",
        f"make_durable {temporary}",
        f"rename {temporary}",
        "make_durable made",
    ]


@pytest.mark.parametrize("step", ["fill", "verify"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_nothing_is_left_when_committing_a_folder_fails(
    tmp_path: Path, step: str, error: BaseException
) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("x")
        raise error

    with pytest.raises(type(error)):
        commit(tmp_path, **{step: fail})
    assert names_in(tmp_path) == []


def test_nothing_bears_the_name_when_the_folder_above_cannot_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, "sync failed")

    monkeypatch.setattr(files, "make_durable", fail)
    with pytest.raises(OSError, match="sync failed"):
        commit(tmp_path)
    [left] = names_in(tmp_path)  # it is not emptied before it is sure to have lost its name
    assert left.startswith(".tmp-")
    assert (tmp_path / left / "note").read_text() == "new"


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_the_next_name_is_taken_when_the_first_is_not_free(tmp_path: Path, kind: str) -> None:
    taken = tmp_path / "1"
    if kind == "file":
        taken.write_text("x")
    elif kind == "dangling link":
        taken.symlink_to(tmp_path / "nowhere")
    else:
        taken.mkdir()
        if kind == "folder":
            (taken / "old").write_text("x")
    before = taken.lstat()
    assert commit(tmp_path) == tmp_path / "2"
    assert taken.lstat() == before


def test_the_next_name_is_taken_when_another_process_is_faster(tmp_path: Path) -> None:
    def fill_while_another_commits(folder: Path) -> None:
        fill(folder)
        answers.append(commit(tmp_path))

    answers: list[Path] = []
    names = iter([tmp_path / "1", tmp_path / "1", tmp_path / "2"])
    target = commit_folder(lambda: next(names), fill_while_another_commits, lambda path: None)
    assert answers == [tmp_path / "1"]
    assert target == tmp_path / "2"


def test_the_error_is_raised_when_a_free_name_cannot_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(files, "rename", fail)
    with pytest.raises(OSError, match="read-only"):
        commit(tmp_path)
    assert names_in(tmp_path) == []


# Removing folders.


def test_names_are_gone_durably_before_contents_when_folders_are_removed(
    tmp_path: Path, steps: list[str]
) -> None:
    kept_name = temporary_beside(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "b", kept_name):
        path.mkdir()
        (path / "note").write_text("x")
    remove_folders([tmp_path / "a", tmp_path / "b", kept_name])
    assert names_in(tmp_path) == []
    assert [step.split()[0] for step in steps] == [
        *["rename"] * 2,
        "make_durable",
        *["remove_tree"] * 3,
    ]


def test_the_other_folders_go_when_one_cannot_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name / "inside").mkdir(parents=True)
    rmtree = shutil.rmtree

    def fail_once(path: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        raise OSError(errno.EIO, "not that one")

    monkeypatch.setattr(shutil, "rmtree", fail_once)
    with pytest.raises(OSError, match="not that one"):
        remove_folders([tmp_path / name for name in "abc"])
    [left] = names_in(tmp_path)
    assert left.startswith(".tmp-")
