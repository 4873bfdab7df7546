"""What may happen to the files of a run between two of its sessions, as a list of named damages."""

import functools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from metta.train.parsing.schema import Leaf, leaves_of
from metta.train.parsing.yaml_text import dump_yaml
from metta.train.train_config import TrainingConfig

CHECKPOINTS = "checkpoints"
NEWEST, OLDER = f"{CHECKPOINTS}/epoch_000004", f"{CHECKPOINTS}/epoch_000002"
_FILES = ("config.yaml", "run.json", "provenance.json", "run.lock", f"{CHECKPOINTS}/scores.json")
_PARTS = ("manifest.json", "policy.safetensors", "state.safetensors", "state.json")

Harm = Callable[[Path, Path], object]
"""Takes the run, and another one to swap files with."""


class Damage(NamedTuple):
    """One way to harm a run."""

    point: str
    file: str
    harm: Harm


def all_damages(seed: int) -> list[Damage]:
    """Every edit of a setting, and cuts, flips, gaps, swaps and losses of every file."""
    chance = random.Random(seed)
    found = [*_edited_settings(), *_edited_descriptions()]
    checkpoint_files = [f"{folder}/{name}" for folder in (NEWEST, OLDER) for name in _PARTS]
    counts = {"config.yaml": 24, "run.json": 16, "provenance.json": 12}
    for file in (*_FILES, *checkpoint_files):
        found += _harmed_bytes(file, chance, counts.get(file, 4))
    for folder in (NEWEST, OLDER, CHECKPOINTS):
        found.append(Damage(f"{folder} removed", folder, _of_folder(folder, _remove_folder)))
        found.append(Damage(f"{folder} of another run", folder, _of_folder(folder, _swap_folder)))
    found += _harmed_bytes("a replay", chance, 2)
    return found


def _harmed_bytes(file: str, chance: random.Random, count: int) -> Iterator[Damage]:
    """Cuts, flipped bits and lost lines, `count` of each, and what can be done to it as a whole."""
    for number in range(count):
        share = number / count
        yield Damage(f"{file} cut to {share:.0%}", file, functools.partial(_cut, file, share))
    for _ in range(count):
        place, bit = chance.random(), chance.randrange(8)
        harm = functools.partial(_flip, file, place, bit)
        yield Damage(f"{file}, bit {bit} at {place:.1%}", file, harm)
    for _ in range(count // 2):
        place = chance.random()
        yield Damage(f"{file} without the line at {place:.0%}", file,
                     functools.partial(_lose_line, file, place))  # fmt: skip
    for what, harm in (("emptied", _empty), ("removed", _lose), ("of another run", _swap)):
        yield Damage(f"{file} {what}", file, functools.partial(harm, file))


def _edited_settings() -> Iterator[Damage]:
    """Every setting in ``config.yaml``, once."""
    for path, leaf in leaves_of(TrainingConfig).items():
        yield Damage(f"{path} edited", "config.yaml", functools.partial(_edit_setting, leaf))


def _edited_descriptions() -> Iterator[Damage]:
    """Every key of ``run.json``, edited and removed."""
    digests = ("settings_sha256", "settings_sha256_before")
    keys = ("name", "own_environment", "own_policy", "environments", *digests)
    for key in keys:
        for value in ("other", None, 7, [], {}):
            yield Damage(f"{key} of run.json is {value!r}", "run.json",
                         functools.partial(_edit_json, "run.json", key, value))  # fmt: skip
        yield Damage(f"{key} of run.json removed", "run.json",
                     functools.partial(_edit_json, "run.json", key, ...))  # fmt: skip


def _edit_setting(leaf: Leaf, run: Path, other: Path) -> None:  # noqa: ARG001  # a Harm
    file = run / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    node = settings
    *parents, name = leaf.path.split(".")
    for parent in parents:
        node = node[parent]
    node[name] = _another(leaf, node[name])
    file.write_text(dump_yaml(settings))


def _another(leaf: Leaf, value: Any) -> Any:
    """A value that the setting does not have, legal where that is simple."""
    if leaf.choices:
        return next(choice for choice in leaf.choices if choice != value)
    if leaf.kind is bool:
        return not value
    if leaf.kind is tuple:
        return ["other"]
    if leaf.kind is dict:
        return {"other": 1}
    if leaf.kind is str or value is None:
        return "other" if leaf.kind is str else 1
    return value + 1 if leaf.kind is int else value * 0.5 + 0.1


def _edit_json(file: str, key: str, value: Any, run: Path, other: Path) -> None:  # noqa: ARG001
    about = json.loads((run / file).read_text())
    del about[key]
    (run / file).write_text(json.dumps(about if value is ... else {**about, key: value}))


def _path(run: Path, file: str) -> Path:
    return sorted((run / "replays").iterdir())[0] if file == "a replay" else run / file


def _cut(file: str, share: float, run: Path, other: Path) -> None:  # noqa: ARG001
    content = _path(run, file).read_bytes()
    _path(run, file).write_bytes(content[: int(share * len(content))])


def _flip(file: str, place: float, bit: int, run: Path, other: Path) -> None:  # noqa: ARG001
    content = bytearray(_path(run, file).read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    _path(run, file).write_bytes(content)


def _lose_line(file: str, place: float, run: Path, other: Path) -> None:  # noqa: ARG001
    lines = _path(run, file).read_bytes().splitlines(keepends=True)
    del lines[int(place * len(lines))]
    _path(run, file).write_bytes(b"".join(lines))


def _empty(file: str, run: Path, other: Path) -> None:  # noqa: ARG001
    _path(run, file).write_bytes(b"")


def _lose(file: str, run: Path, other: Path) -> None:  # noqa: ARG001
    _path(run, file).unlink()


def _swap(file: str, run: Path, other: Path) -> None:
    shutil.copy(_path(other, file), _path(run, file))


def _of_folder(folder: str, harm: Callable[[Path, Path], None]) -> Harm:
    return lambda run, other: harm(run / folder, other / folder)


def _remove_folder(mine: Path, theirs: Path) -> None:  # noqa: ARG001
    shutil.rmtree(mine)


def _swap_folder(mine: Path, theirs: Path) -> None:
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
