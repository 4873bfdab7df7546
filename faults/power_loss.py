"""Loss of power at every moment of a save: all states that the model of a disk allows are looked at.

The save goes through, in a real folder, and the model hears of every operation. After each of them the
states that a loss of power could leave are built as real folders and examined: until the save has returned,
the old checkpoints must be whole; from then on, the new one. Equal states are looked at once.
"""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults import saved_run
from faults.model_disk import LIMIT, ModelDisk, Tree, build, recorded, tree_of
from faults.trial import OK, Trial
from metta.errors import CheckpointError
from metta.files import TEMPORARY, atomic_write
from metta.stateful import digest_of
from metta.store.checkpoints import files as checkpoint_files
from metta.store.checkpoints import retention
from metta.store.checkpoints.files import read_newest_checkpoint

NAME = "power_loss"
Skip = Callable[[str, Path], bool]
_UNIQUE = re.compile(r"(?<=\.tmp-)[0-9a-f]+")


@dataclass(frozen=True)
class Scene:
    """Something that must survive a loss of power."""

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path, Callable[[], None]], None]
    """Calls its second argument at the moment from which on the result must be there."""
    examine: Callable[[Path, bool], tuple[str, str | None]]
    """What is wrong in a folder, or OK, and a digest; the flag: the result must be there."""


@dataclass(frozen=True)
class State:
    """What may be found, and the first moment at which it may."""

    point: str
    tree: Tree
    must_be_done: bool


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """All states of all scenes; with a `count`, those that differ in what is read at all."""
    for number, scene in enumerate(SCENES):
        states = possible_states(scene, folder / f"scene-{number}")
        for state in readably_different(states) if count else states:
            yield look_at(scene, state, seed, folder / "state")


def possible_states(
    scene: Scene, folder: Path, skip: Skip | None = None, *, limit: int = LIMIT
) -> list[State]:
    """Play a scene, with operations left out if wanted, and gather what a loss of power could leave."""
    folder.mkdir()
    scene.prepare(folder)
    disk, is_done = ModelDisk(folder, limit), False
    found: dict[tuple[Tree, bool], State] = {}

    def gather(operation: str, path: Path) -> None:
        inside = path.relative_to(folder).as_posix()
        point = f"{scene.name}: after {operation} {_UNIQUE.sub('*', inside)}"
        for tree in disk.states():
            found.setdefault((tree, is_done), State(point, tree, is_done))

    def done() -> None:
        nonlocal is_done
        is_done = True
        gather("returning", folder)

    gather("nothing", folder)
    with recorded(disk, gather, skip):
        scene.act(folder, done)
    assert disk.now() == tree_of(folder), "the model did not hear of all that was done to the disk"
    assert disk.is_complete or skip is not None, "there are more states than the model enumerates"
    return list(found.values())


def readably_different(states: list[State]) -> list[State]:
    """Without those that differ only inside temporary folders, which are removed whatever they hold."""
    return list({(_essence(state.tree), state.must_be_done): state for state in states}.values())


def _essence(tree: Tree) -> Tree:
    return tuple(
        (name, content if isinstance(content, bytes) else _essence(content))
        if not name.startswith(TEMPORARY)
        else (TEMPORARY, b"")
        for name, content in tree
    )


def look_at(scene: Scene, state: State, seed: int, folder: Path) -> Trial:
    build(state.tree, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome, digest = scene.examine(folder, state.must_be_done)
    shutil.rmtree(folder)
    return Trial(NAME, seed, state.point, outcome, digest, {"must_be_done": state.must_be_done})


def _save_and_prune(folder: Path, done: Callable[[], None]) -> None:
    path = _write(folder)
    done()
    rules = {"keep_last": saved_run.KEEP_LAST, "run_id": saved_run.RUN_ID}
    retention.prune_checkpoints(folder, newest=path, **rules)


def _write(folder: Path) -> Path:
    now = saved_run.pending(saved_run.NEW)
    about = {**now.metadata, "epoch": now.epoch, "agent_step": now.agent_step}
    run_id = saved_run.RUN_ID
    return checkpoint_files.write_checkpoint(folder, now.snapshot, now.policy, about, run_id=run_id)


def _examine_saved(folder: Path, must_be_done: bool) -> tuple[str, str | None]:
    return saved_run.examine(folder, saved=must_be_done or None)


def _fail_to_save(folder: Path, done: Callable[[], None]) -> None:
    """The new checkpoint is in its place when it turns out that it cannot be read."""

    def refuse(_: Path) -> None:
        raise CheckpointError("it is damaged")

    verify, checkpoint_files.verify_checkpoint = checkpoint_files.verify_checkpoint, refuse
    try:
        _write(folder)
    except CheckpointError:
        done()
    finally:
        checkpoint_files.verify_checkpoint = verify


def _examine_not_saved(folder: Path, must_be_done: bool) -> tuple[str, str | None]:
    return saved_run.examine(folder, saved=False if must_be_done else None)


def _save_first(folder: Path, done: Callable[[], None]) -> None:
    _write(folder / "runs" / "first" / "checkpoints")
    done()


def _examine_first(folder: Path, must_be_done: bool) -> tuple[str, str | None]:
    place = folder / "runs" / "first" / "checkpoints"
    try:
        newest = read_newest_checkpoint(place)
        if newest is None and must_be_done:
            return "the first checkpoint is lost", None
        if saved_run.save(place, saved_run.NEXT) != saved_run.SAVED:
            return "the next save does not work", None
    except (CheckpointError, Warning, OSError) as error:
        return f"{type(error).__name__}: {error}", None
    return OK, None if newest is None else digest_of(newest.snapshot)


def _write_note(folder: Path, done: Callable[[], None]) -> None:
    atomic_write(folder / "deep" / "down" / "note", lambda path: path.write_text("new") and None)
    done()


def _write_old_note(folder: Path) -> None:
    (folder / "deep" / "down").mkdir(parents=True)
    (folder / "deep" / "down" / "note").write_text("old")


def _examine_note(folder: Path, must_be_done: bool, before: str | None = None) -> tuple[str, None]:
    place = folder / "deep" / "down" / "note"
    found = place.read_text() if place.exists() else None
    left = {path.name for path in place.parent.glob("*")} - {place.name}
    if found not in ({"new"} if must_be_done else {"new", before}):
        return f"the file holds {found!r}", None
    return (OK if all(name.startswith(TEMPORARY) for name in left) else f"{left} are left"), None


SCENES = [
    Scene("save and prune", saved_run.prepare, _save_and_prune, _examine_saved),
    Scene("failed save", saved_run.prepare, _fail_to_save, _examine_not_saved),
    Scene("first save", lambda _: None, _save_first, _examine_first),
    Scene("new file", lambda _: None, _write_note, _examine_note),
    Scene("replaced file", _write_old_note, _write_note, partial(_examine_note, before="old")),
]
