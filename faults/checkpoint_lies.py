"""Checkpoints that were changed by hand: the manifest may agree with the files, or not."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults.good_files import make_checkpoint
from faults.header_lies import MANIFEST, QUIET, STRUCTURAL, Lie, joined, split
from metta.store.checkpoints.manifest import FILES, MANIFEST_FILE, manifest_of, sealed

Lies = Callable[[Path, Random], set[str]]
"""Changes a checkpoint's folder, and returns the names of the files that are no longer what they were."""


def reseal(folder: Path) -> None:
    """Make the manifest agree with the files, as anyone can who may write it."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    measured = manifest_of(folder, {"epoch": 0, "agent_step": 0})["files"]
    write_manifest(folder, {**manifest, "files": measured})


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / MANIFEST_FILE).write_text(json.dumps(sealed(manifest)))


def _manifest(change: Callable[[dict[str, Any]], Any], *, seal: bool = True) -> Lies:
    def lie(folder: Path, _: Random) -> set[str]:
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        change(manifest)
        if seal:
            write_manifest(folder, manifest)
        else:
            (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
        return {MANIFEST_FILE}

    return lie


def _raw_manifest(text: str) -> Lies:
    def lie(folder: Path, _: Random) -> set[str]:
        (folder / MANIFEST_FILE).write_text(text)
        return {MANIFEST_FILE}

    return lie


def _replaced(make: Callable[[Path, Path], Any]) -> Lies:
    """Something else in the place of a file, whichever; `make` gets the place and a copy of the file."""

    def lie(folder: Path, random: Random) -> set[str]:
        place = folder / random.choice([*FILES, MANIFEST_FILE])
        outside = folder.parent / "outside"
        outside.mkdir(exist_ok=True)
        copy = Path(shutil.copy(place, outside))
        place.unlink()
        make(place, copy)
        return {place.name}

    return lie


def _tree(text: str | Callable[[Any], Any]) -> Lies:
    """Another state.json that the manifest agrees with."""

    def lie(folder: Path, _: Random) -> set[str]:
        path = folder / "state.json"
        if isinstance(text, str):
            path.write_text(text)
        else:
            tree = json.loads(path.read_text())
            text(tree)
            path.write_text(json.dumps(tree))
        reseal(folder)
        return {path.name}

    return lie


def _inside(name: str, lie: Lie) -> Lies:
    """A tensor file with a lie in it that the manifest agrees with."""

    def change(folder: Path, random: Random) -> set[str]:
        header, data = split((folder / name).read_bytes())
        (folder / name).write_bytes(lie(header, data, random))
        reseal(folder)
        return {name}

    return change


def _of_another(folder: Path, random: Random) -> set[str]:
    """A file of another checkpoint, with the same settings."""
    agent = json.loads((folder / MANIFEST_FILE).read_text())["metadata"]["agent"]
    kind = (
        "lstm" if agent["core"] == "lstm" else "normalised" if agent["normalize_returns"] else "mlp"
    )
    other = make_checkpoint(folder.parent / "other", kind, seed=2)
    # the tree of numbers is equal in both
    name = random.choice(["policy.safetensors", "state.safetensors"])
    shutil.copy(other / name, folder / name)
    return {name}


def _exchanged(folder: Path, random: Random) -> set[str]:
    first, second = random.sample([*FILES, MANIFEST_FILE], 2)
    (folder / first).rename(folder / "x")
    (folder / second).rename(folder / first)
    (folder / "x").rename(folder / second)
    return {first, second}


def _files(change: Callable[[dict[str, Any]], Any]) -> Lies:
    return _manifest(lambda manifest: change(manifest["files"]))


def _state(change: Callable[[dict[str, Any]], Any]) -> Lies:
    return _tree(lambda tree: change(tree["environments"]))


LIES: dict[str, Lies] = {
    "no manifest": _replaced(
        lambda place, _: (place.parent / MANIFEST_FILE).unlink(missing_ok=True)
    ),
    "a link to the same file elsewhere": _replaced(lambda place, copy: place.symlink_to(copy)),
    "a link to itself": _replaced(lambda place, _: place.symlink_to(place.name)),
    "a link to nothing": _replaced(lambda place, _: place.symlink_to("nowhere")),
    "a pipe": _replaced(lambda place, _: os.mkfifo(place)),
    "a folder": _replaced(lambda place, _: place.mkdir()),
    "a device": _replaced(lambda place, _: place.symlink_to("/dev/zero")),
    "nothing": _replaced(lambda *_: None),
    "a file of another checkpoint": _of_another,
    "two files exchanged": _exchanged,
    "a path upwards": _files(lambda f: f.update({"../outside": f.pop("state.json")})),
    "an absolute path": _files(lambda f: f.update({"/etc/passwd": f.pop("state.json")})),
    "a file more": _files(lambda f: f.update(more={"size": 0, "sha256": ""})),
    "a file less": _files(lambda f: f.pop("state.json")),
    "a size that is wrong": _files(lambda f: f["state.json"].update(size=1)),
    "a size that is a text": _files(lambda f: f["state.json"].update(size="1")),
    "a size that is true": _files(lambda f: f["state.json"].update(size=True)),
    "a size of 2^80": _files(lambda f: f["state.json"].update(size=2**80)),
    "a digest that is wrong": _files(lambda f: f["policy.safetensors"].update(sha256="0" * 64)),
    "a digest that is nothing": _files(lambda f: f["policy.safetensors"].update(sha256=None)),
    "a digest that is gone": _files(lambda f: f["policy.safetensors"].pop("sha256")),
    "files that are a list": _manifest(lambda m: m.update(files=[])),
    "a later version": _manifest(lambda m: m.update(format_version=2)),
    "another format": _manifest(lambda m: m.update(format="tar")),
    "an epoch that is a text": _manifest(lambda m: m.update(epoch="7")),
    "an epoch of floats": _manifest(lambda m: m.update(epoch=7.5)),
    "no epoch": _manifest(lambda m: m.pop("epoch")),
    "metadata that are a list": _manifest(lambda m: m.update(metadata=[1])),
    "metadata with an unknown tag": _manifest(lambda m: m.update(metadata={"$code": "x"})),
    "metadata with a tensor": _manifest(lambda m: m.update(metadata={"x": {"$tensor": "x"}})),
    "an unsealed change": _manifest(lambda m: m.update(agent_step=1), seal=False),
    "an unsealed score": _manifest(lambda m: m["metadata"].update(score=99.0), seal=False),
    "a manifest of brackets": _raw_manifest("[" * 1_000_000),
    "a manifest of objects": _raw_manifest('{"a":' * 1_000_000),
    "a manifest of 9 MB": _raw_manifest(" " * 9_000_000 + "{}"),
    "a manifest of many values": _raw_manifest("[" + "{}," * 1_000_000 + "{}]"),
    "a manifest of many texts": _raw_manifest('"' * 8_000_000),
    "a manifest with a key twice": _raw_manifest('{"format":1,"format":1}'),
    "a manifest of NaN": _raw_manifest("NaN"),
    "a manifest of bytes": _raw_manifest("\ufffe\0"),
    "a tree of brackets": _tree("[" * 1_000_000),
    "a tree of many values": _tree("[" + "{}," * 1_000_000 + "{}]"),
    "a tree that is a number": _tree("3"),
    "a tree that is a list": _tree("[]"),
    "a tree of nothing": _tree(""),
    "a component without state": _tree(lambda t: t["environments"].pop("state")),
    "a component that is a text": _tree(lambda t: t.update(environments="x")),
    "a component with more": _state(lambda part: part.update(code="os.system")),
    "an unknown tag": _state(lambda part: part.update(state={"$reduce": ["os.system", "x"]})),
    "a tensor that is missing": _state(lambda part: part.update(state={"$tensor": "nowhere"})),
    "a tensor that is a list": _state(lambda part: part.update(state={"$tensor": [1]})),
    "items that are none": _state(lambda part: part.update(state={"$items": 1})),
    "items without values": _state(lambda part: part.update(state={"$items": [["a"]]})),
    "items with a key that is a list": _state(
        lambda part: part.update(state={"$items": [[[], 1]]})
    ),
    "a tuple that is none": _state(lambda part: part.update(state={"$tuple": 1})),
    "a number that is none": _state(lambda part: part.update(state={"$float": "x"})),
    "a policy with state": _tree(lambda t: t["policy"].update(state={}, more=1)),
}
LIES |= {
    f"{what} in the state": _inside("state.safetensors", lie) for what, lie in STRUCTURAL.items()
}
LIES |= {
    f"{what} in the policy": _inside("policy.safetensors", lie)
    for what, lie in {**STRUCTURAL, **QUIET, **MANIFEST}.items()
}


def _nan_inside(folder: Path, random: Random) -> set[str]:
    """Weights of NaN, with all digests right."""
    from faults.knowing_lies import nan_weights

    nan_weights(folder / "policy.safetensors", random)
    reseal(folder)
    return {"policy.safetensors"}


LIES["weights of NaN"] = _nan_inside
__all__ = ["LIES", "joined", "reseal"]
