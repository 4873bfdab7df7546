import hashlib
import os
from pathlib import Path

import pytest

from metta.files import atomic_write, sha256_of


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_the_file_holds_what_was_written_when_all_goes_well(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "note.txt", lambda path: path.write_text("new") and None)
    assert target == tmp_path / "note.txt"
    assert target.read_text() == "new"
    assert names_in(tmp_path) == ["note.txt"]


def test_folders_are_made_when_they_are_missing(tmp_path: Path) -> None:
    target = atomic_write(str(tmp_path / "a" / "b" / "note"), lambda path: path.touch())
    assert target.is_file()


def test_the_old_file_is_replaced_when_it_exists(tmp_path: Path) -> None:
    target = tmp_path / "note"
    target.write_text("old")
    atomic_write(target, lambda path: path.write_text("new") and None)
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


def test_readers_see_the_old_file_when_a_write_is_under_way(tmp_path: Path) -> None:
    target = tmp_path / "note"
    target.write_text("old")

    def look(path: Path) -> None:
        path.write_text("new")
        assert target.read_text() == "old"
        assert path.parent == target.parent  # the same file system, or the rename is no rename

    atomic_write(target, look)


def test_the_new_file_is_durable_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), sync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (events.append("rename"), replace(a, b))[1])
    atomic_write(tmp_path / "note", lambda path: path.touch())
    assert events == ["sync", "rename", "sync"]


def test_the_checksum_is_that_of_the_bytes_when_a_file_is_large(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "data").write_bytes(content)
    assert sha256_of(tmp_path / "data") == hashlib.sha256(content).hexdigest()
