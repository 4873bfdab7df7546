"""A model of what a loss of power may leave of files and folders, fed by the functions of `metta.files`.

It promises no more than POSIX does. Bytes of a file that were not synced may be missing, partly written,
zeros, or written. Changes of a folder's entries that were not synced (made, renamed, removed) each happened
or did not, independently of the others; a rename is one change. What was synced is there.

All combinations are enumerated; only where they are more than `LIMIT` is it each single deviation from
"nothing happened" and from "all happened", and `is_complete` is then False. Writers may use their own names
until they are done (safetensors does): the model takes a file as written under its own name.
"""

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metta import files

LIMIT = 512
Tree = tuple[tuple[str, Any], ...]
"""Sorted pairs of a name and bytes, or a name and a Tree."""


@dataclass(eq=False)
class _File:
    now: bytes
    durable: bytes | None = None

    def variants(self) -> list[bytes]:
        if self.now == self.durable:
            return [self.now]
        cut = self.now[: len(self.now) // 2]
        return list(dict.fromkeys([self.durable or b"", cut, bytes(len(self.now)), self.now]))


@dataclass(eq=False)
class _Folder:
    now: dict[str, "_File | _Folder"] = field(default_factory=dict)
    durable: dict[str, "_File | _Folder"] = field(default_factory=dict)
    changes: list[dict[str, "_File | _Folder | None"]] = field(default_factory=list)
    """What was not waited for, in order; None: the name is gone."""

    def change(self, change: dict[str, "_File | _Folder | None"]) -> None:
        self.changes.append(change)
        self.now = _applied(self.now, [change])


class ModelDisk:
    """What is under one folder: as a program sees it, and as a loss of power may leave it."""

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.root, self.limit = root, limit
        self.is_complete = True
        self._top = _load(root)

    def now(self) -> Tree:
        """What a program sees."""
        return _tree_now(self._top)

    def states(self) -> set[Tree]:
        """All that may be found after a loss of power at this moment."""
        return set(self._states(self._top))

    def write(self, path: Path, content: bytes) -> None:
        folder, name = self._find(path.parent), path.name
        known = folder.now.get(name)
        if known is None:
            folder.change({name: _File(content)})
        else:
            known.now = content

    def make_durable(self, path: Path) -> None:
        found = self._find(path)
        if isinstance(found, _Folder):
            found.durable, found.changes = dict(found.now), []
        else:
            found.durable = found.now

    def make_folder(self, path: Path) -> None:
        self._find(path.parent).change({path.name: _Folder()})

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "a rename across folders is not modelled"
        folder = self._find(source.parent)
        folder.change({source.name: None, target.name: folder.now[source.name]})

    def remove_file(self, path: Path) -> None:
        folder = self._find(path.parent)
        if path.name in folder.now:
            folder.change({path.name: None})

    def remove_tree(self, path: Path) -> None:
        for name, node in list(self._find(path).now.items()):
            remove = self.remove_tree if isinstance(node, _Folder) else self.remove_file
            remove(path / name)
        self._find(path.parent).change({path.name: None})

    def _find(self, path: Path) -> Any:
        node: Any = self._top
        for part in path.relative_to(self.root).parts:
            node = node.now[part]
        return node

    def _states(self, folder: _Folder) -> Iterator[Tree]:
        for happened in self._combinations([(False, True)] * len(folder.changes)):
            chosen = itertools.compress(folder.changes, happened)
            entries = sorted(_applied(folder.durable, chosen).items())
            variants = [
                list(self._states(node)) if isinstance(node, _Folder) else node.variants()
                for _, node in entries
            ]
            names = [name for name, _ in entries]
            for contents in self._combinations(variants):
                yield tuple(zip(names, contents, strict=True))

    def _combinations(self, options: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        if math.prod(map(len, options)) <= self.limit:
            yield from itertools.product(*options)
            return
        self.is_complete = False
        for base in ([choices[0] for choices in options], [choices[-1] for choices in options]):
            for place, choices in enumerate(options):
                for choice in choices:
                    yield (*base[:place], choice, *base[place + 1 :])


def _applied(entries: dict, changes: Any) -> dict:
    found = dict(entries)
    for name, node in itertools.chain.from_iterable(change.items() for change in changes):
        if node is None:
            found.pop(name, None)
        else:
            found[name] = node
    return found


def _load(folder: Path) -> _Folder:
    inside = {
        path.name: _load(path) if path.is_dir() else _File(path.read_bytes(), path.read_bytes())
        for path in folder.iterdir()
    }
    return _Folder(inside, dict(inside))


def _tree_now(folder: _Folder) -> Tree:
    return tuple(
        (name, _tree_now(node) if isinstance(node, _Folder) else node.now)
        for name, node in sorted(folder.now.items())
    )


def tree_of(folder: Path) -> Tree:
    """What is in a real folder."""
    return _tree_now(_load(folder))


def build(tree: Tree, folder: Path) -> None:
    """Make a real folder of a state."""
    folder.mkdir()
    for name, content in tree:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            build(content, folder / name)


@contextlib.contextmanager
def recorded(
    disk: ModelDisk,
    after: Callable[[str, Path], None],
    skip: Callable[[str, Path], bool] | None = None,
) -> Iterator[None]:
    """Tell a model of everything that metta does to the disk meanwhile, and `after` of each operation.

    Operations for which `skip` is true are left out, to see what they are good for.
    """

    def wrapped(name: str) -> Callable[..., None]:
        original, note = getattr(files, name), getattr(disk, name)

        def operate(*paths: Path) -> None:
            if skip is None or not skip(name, Path(paths[0])):
                original(*paths)
                note(*map(Path, paths))
                after(name, Path(paths[0]))

        return operate

    original_write = files.write_durably

    def write_durably(path: Path, write: Callable[[Path], None]) -> None:
        def write_and_note(target: Path) -> None:
            write(target)
            disk.write(target, target.read_bytes())
            after("write", target)

        original_write(path, write_and_note)

    names = ["make_durable", "make_folder", "rename", "remove_file", "remove_tree"]
    replacements = {getattr(files, name): wrapped(name) for name in names}
    replacements[original_write] = write_durably
    with _replaced(replacements):
        yield


@contextlib.contextmanager
def _replaced(replacements: dict[Any, Any]) -> Iterator[None]:
    """Put functions in the place of others in every module of metta that knows them."""
    changed = [
        (module, name, value)
        for title, module in list(sys.modules.items())
        if title.partition(".")[0] == "metta"
        for name, value in list(vars(module).items())
        if callable(value) and _is_among(value, replacements)
    ]
    for module, name, value in changed:
        setattr(module, name, replacements[value])
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _is_among(value: Any, replacements: dict[Any, Any]) -> bool:
    return any(value is known for known in replacements)
