"""The modelled loss of power: what the model allows, that metta survives it, and what it would find."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import power_loss, saved_run
from faults.model_disk import ModelDisk, Tree
from faults.power_loss import SCENES, Scene, look_at, possible_states, readably_different
from faults.trial import OK
from metta import files
from metta.files import TEMPORARY
from metta.store.checkpoints import files as checkpoint_files
from metta.store.checkpoints import retention

SAVE, FAILED, FIRST, NEW_FILE, OLD_FILE = SCENES


def test_nothing_is_lost_when_the_power_fails_at_any_moment(tmp_path: Path) -> None:
    trials = list(power_loss.trials(1, 1, tmp_path))
    assert [trial for trial in trials if trial.outcome != OK] == []
    assert len(trials) == 29
    found = {trial.digest for trial in trials if trial.point.startswith(SAVE.name)}
    assert found == {saved_run.digest(saved_run.LATEST), saved_run.digest(saved_run.NEW)}
    assert {scene.name for scene in SCENES} == {trial.point.split(":")[0] for trial in trials}


# What would be found if a step were left out.


def first_violation(scene: Scene, folder: Path, skip: power_loss.Skip | None = None) -> str | None:
    states = possible_states(scene, folder / "scene", skip or (lambda *_: False), limit=32)
    different = readably_different(states)
    trials = (look_at(scene, state, 1, folder / "state") for state in reversed(different))
    return next((trial.outcome for trial in trials if trial.outcome != OK), None)


def syncs(which: Callable[[Path], bool]) -> power_loss.Skip:
    return lambda operation, path: operation == "make_durable" and which(path)


@pytest.mark.parametrize(
    ("scene", "skip"),
    [
        pytest.param(SAVE, syncs(Path.is_file), id="files of a checkpoint"),
        pytest.param(
            SAVE,
            syncs(lambda path: path.is_dir() and path.name.startswith(TEMPORARY)),
            id="the folder of a checkpoint",
        ),
        pytest.param(SAVE, syncs(lambda path: path.name == "scene"), id="the folder above"),
        pytest.param(FIRST, syncs(lambda path: path.name == "scene"), id="the first folder made"),
        pytest.param(FIRST, syncs(lambda path: path.name == "first"), id="the last folder made"),
        pytest.param(OLD_FILE, syncs(Path.is_file), id="a file"),
        pytest.param(OLD_FILE, syncs(Path.is_dir), id="the folder of a file"),
        pytest.param(NEW_FILE, syncs(lambda path: path.name == "deep"), id="folders of a file"),
    ],
)
def test_a_loss_is_found_when_something_is_not_waited_for(
    tmp_path: Path, scene: Scene, skip: power_loss.Skip
) -> None:
    assert first_violation(scene, tmp_path, skip) is not None


def test_a_loss_is_found_when_checkpoints_are_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_in_place(
        free_path: Callable[[], Path],
        fill: Callable[[Path], None],
        verify: Callable[[Path], object],
        owner: str | None,
    ) -> Path:
        target = free_path()
        files.make_folder(target)
        files.make_durable(target.parent)
        fill(target)
        files.make_durable(target)
        verify(target)
        return target

    monkeypatch.setattr(checkpoint_files, "commit_folder", write_in_place)
    assert "epoch_000004" in (first_violation(SAVE, tmp_path) or "")


@pytest.mark.parametrize(("scene", "module"), [(SAVE, retention), (FAILED, files)])
def test_a_loss_is_found_when_a_folder_is_emptied_before_its_name_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Scene, module: object
) -> None:
    def remove_at_once(paths: list[Path], owner: str | None) -> None:
        for path in paths:
            hidden = files.temporary_beside(path, owner)
            files.rename(path, hidden)
            files.remove_tree(hidden)

    monkeypatch.setattr(module, "remove_folders", remove_at_once)
    assert first_violation(scene, tmp_path) is not None


def test_an_error_is_raised_when_the_model_is_passed_by(tmp_path: Path) -> None:
    def write_secretly(folder: Path, done: Callable[[], None]) -> None:
        (folder / "note").write_text("x")
        done()

    scene = Scene("secret", lambda _: None, write_secretly, lambda *_: (OK, None))
    with pytest.raises(AssertionError, match="did not hear"):
        possible_states(scene, tmp_path / "scene")


def test_an_error_is_raised_when_states_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="more states"):
        possible_states(SAVE, tmp_path / "scene", limit=4)


# The model.

CONTENT = b"abcd"
VARIANTS = [b"", b"ab", bytes(4), CONTENT]


def disk_with(folder: Path, *names: str) -> ModelDisk:
    for name in names:
        (folder / name).write_bytes(b"old")
    return ModelDisk(folder)


def trees(*contents: dict[str, bytes | Tree]) -> set[Tree]:
    return {tuple(sorted(content.items())) for content in contents}


def test_a_new_file_may_be_anything_when_nobody_waited(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    disk.write(tmp_path / "a", CONTENT)
    assert disk.states() == trees({}, *({"a": content} for content in VARIANTS))
    assert disk.now() == (("a", CONTENT),)


def test_a_new_file_may_lack_its_name_when_only_its_bytes_were_waited_for(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    disk.write(tmp_path / "a", CONTENT)
    disk.make_durable(tmp_path / "a")
    assert disk.states() == trees({}, {"a": CONTENT})


def test_a_new_file_may_lack_its_bytes_when_only_its_name_was_waited_for(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    disk.write(tmp_path / "a", CONTENT)
    disk.make_durable(tmp_path)
    assert disk.states() == trees(*({"a": content} for content in VARIANTS))


def test_a_file_is_there_when_bytes_and_name_were_waited_for(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    disk.write(tmp_path / "a", CONTENT)
    disk.make_durable(tmp_path / "a")
    disk.make_durable(tmp_path)
    assert disk.states() == trees({"a": CONTENT})


def test_an_old_file_keeps_its_bytes_when_it_is_written_again(tmp_path: Path) -> None:
    disk = disk_with(tmp_path, "a")
    disk.write(tmp_path / "a", CONTENT)
    assert disk.states() == trees(*({"a": content} for content in [b"old", *VARIANTS[1:]]))


def test_a_rename_happens_as_a_whole_when_nobody_waited(tmp_path: Path) -> None:
    disk = disk_with(tmp_path, "a", "b")
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.states() == trees({"a": b"old", "b": b"old"}, {"b": b"old"})


def test_changes_happen_in_any_order_when_nobody_waited(tmp_path: Path) -> None:
    disk = disk_with(tmp_path, "a", "b", "c")
    for name in "abc":
        disk.remove_file(tmp_path / name)
    subsets = itertools.chain.from_iterable(itertools.combinations("abc", n) for n in range(4))
    assert disk.states() == trees(*(dict.fromkeys(subset, b"old") for subset in subsets))


def test_a_folder_may_be_half_empty_under_its_old_name_when_nobody_waited(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"old")
    disk = disk_with(tmp_path)
    disk.rename(tmp_path / "folder", tmp_path / "hidden")
    disk.remove_tree(tmp_path / "hidden")
    inside: Tree = (("a", b"old"),)
    assert disk.states() == trees(
        {}, *({name: content} for name in ("folder", "hidden") for content in (inside, ()))
    )
    disk.make_durable(tmp_path)
    assert disk.states() == trees({})


def test_single_deviations_are_enumerated_when_there_are_too_many_states(tmp_path: Path) -> None:
    disk = ModelDisk(tmp_path, limit=16)
    for number in range(5):
        disk.make_folder(tmp_path / str(number))
    sizes = sorted(len(tree) for tree in disk.states())
    assert sizes == [0, *[1] * 5, *[4] * 5, 5]
    assert not disk.is_complete
