"""The content of a checkpoint or a policy file, read without building anything from it."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metta.errors import CheckpointError, MettaError
from metta.state_tree import unpack_state
from metta.store.checkpoints.files import checkpoint_folders, read_checkpoint, verify_checkpoint
from metta.store.checkpoints.listing import listing_anew, reading
from metta.store.checkpoints.manifest import (
    FILES,
    MALFORMED,
    MANIFEST_FILE,
    POLICY_FILE,
    TENSOR_FILE,
    TREE_FILE,
    check_file,
    read_manifest,
    score_of,
)
from metta.store.policies.file import OpenPolicy, open_policy
from metta.store.policy_store import PolicyStore, store_in
from metta.store.safe_read import check_tensor_file
from metta.untrusted.json_files import read_json
from metta.untrusted.paths import path_of

__all__ = ["find_thing", "inspect_named", "inspect_thing"]

_KNOWN = {"format", "format_version", "epoch", "agent_step", "metadata", "files", "sha256"}


def inspect_named(name: str, output: Path, *, load: bool = False) -> dict[str, Any]:
    """`inspect_thing` of what `find_thing` finds; repeated if a trainer removes it meanwhile."""
    return listing_anew(lambda: _find_and_inspect(name, output, load))


def _find_and_inspect(name: str, output: Path, load: bool) -> dict[str, Any]:
    path = find_thing(name, output)
    with reading(path):
        found = inspect_thing(path, load=load)
        if found["problems"] and not os.path.lexists(path):
            raise CheckpointError(found["problems"][0])
    return found


def find_thing(name: str, output: Path) -> Path:
    """The checkpoint or policy file that a path, a URI, a run's name or ``run:best`` means.

    For a run, or a folder of checkpoints, it is the newest checkpoint, even if it is damaged.
    """
    path = path_of(name)
    if not _exists(path) and _exists(output / name):
        path = (output / name).absolute()
    if not _exists(path):
        return path_of(PolicyStore(output).find(name).uri)
    path = path.resolve() if path.is_symlink() else path  # named by the user, not found in a run
    if not path.is_dir() or (path / MANIFEST_FILE).exists():
        return path
    folders = checkpoint_folders(store_in(path).root)
    return folders[-1] if folders else path_of(PolicyStore(output).find(path).uri)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name that is too long
        return False


def inspect_thing(path: Path, *, load: bool = False) -> dict[str, Any]:
    """Everything that is known about it, as plain data; ``problems`` lists what is wrong.

    Every file is compared with its checksum; with `load` all state is also read as a resuming run would.
    What cannot be inspected at all is a `CheckpointError`, `PolicyError` or `UnsafeFileError`.
    """
    try:
        if path.is_dir():
            return _inspect_checkpoint(path, load)
        if path.name == POLICY_FILE and (path.parent / MANIFEST_FILE).exists():
            check_file(path)
        return _inspect_policy(path, load)
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error}") from error


def _inspect_checkpoint(path: Path, load: bool) -> dict[str, Any]:
    manifest = read_manifest(path)
    metadata = unpack_state(manifest["metadata"], {})
    found = {
        "kind": "checkpoint",
        "path": str(path),
        "format": f"{manifest['format']} {manifest['format_version']}",
        "epoch": manifest["epoch"],
        "agent_step": manifest["agent_step"],
        "score": score_of(metadata),
        "metadata": metadata,
        **{name: part for name, part in manifest.items() if name not in _KNOWN},
        "files": [_file_state(path / name, manifest) for name in FILES],
    }
    problems = []
    try:
        read_checkpoint(path) if load else verify_checkpoint(path)
        found |= _contents(path)
    except (MettaError, *MALFORMED) as error:
        problems.append(f"{type(error).__name__}: {error}")
    return {**found, "problems": problems}


def _file_state(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    size = path.stat().st_size if path.is_file() else None
    try:
        check_file(path, manifest)
        state = "ok"
    except CheckpointError:
        state = "missing" if size is None else "damaged"
    announced = manifest["files"][path.name]["sha256"]
    return {"name": path.name, "bytes": size, "state": state, "sha256": announced}


def _contents(path: Path) -> dict[str, Any]:
    """The components of a checkpoint, and the tensors of its policy."""
    tree, tensors = read_json(path / TREE_FILE), check_tensor_file(path / TENSOR_FILE)
    with open_policy(path / POLICY_FILE) as opened:
        policy = _describe_policy(opened)
    about: dict[str, Any] = {}
    for name in tree:
        if name.partition("/")[0] == "environments":  # of each shard, all of one class
            about["environments"] = tree[name]["state"]["class"]
    if "conditions" in tree:
        about["conditions"] = unpack_state(tree["conditions"]["state"], {})
    components = []
    for name, part in tree.items():
        sizes = [math.prod(tensors.places[found].shape) for found in _tensors_in(part)]
        count, numbers = len(sizes), sum(sizes)
        if name == "policy":  # its tensors have a separate file
            count, numbers = policy["num_tensors"], policy["num_numbers"]
        about_part = {"name": name, "version": part["version"], "tensors": count}
        components.append({**about_part, "numbers": numbers})
    return {**about, "components": components, **policy}


def _tensors_in(packed: Any) -> Iterator[str]:
    """Names of the tensors that a component's packed state refers to."""
    if isinstance(packed, list):
        for part in packed:
            yield from _tensors_in(part)
    elif isinstance(packed, dict):
        for name, part in packed.items():
            if name in ("$tensor", "$array") and isinstance(part, str):
                yield part
            else:
                yield from _tensors_in(part)


def _describe_policy(opened: OpenPolicy) -> dict[str, Any]:
    manifest, found = opened.manifest, opened.tensors.announced
    tensors = [
        {"name": name, "type": place.dtype, "shape": list(place.shape)}
        for name, place in found.places.items()
    ]
    return {
        "observation_space": manifest["observation_space"],
        "action_space": manifest["action_space"],
        "tensors": tensors,
        "num_tensors": len(tensors),
        "num_numbers": sum(math.prod(place.shape) for place in found.places.values()),
    }


def _inspect_policy(path: Path, load: bool) -> dict[str, Any]:
    with open_policy(path) as opened:
        return _describe_file(opened, load)


def _describe_file(opened: OpenPolicy, load: bool) -> dict[str, Any]:
    path, manifest = opened.path, opened.manifest
    metadata, problems = manifest["metadata"], []
    try:
        if load:
            opened.read()
        else:
            opened.verify()
    except MettaError as error:
        problems.append(f"{type(error).__name__}: {error}")
    size, state = opened.tensors.size, "damaged" if problems else "ok"
    file = {"name": path.name, "bytes": size, "state": state, "sha256": opened.tensors.sha256()}
    return {
        "kind": "policy",
        "path": str(path),
        "format": f"{manifest['format']} {manifest['format_version']}",
        "epoch": metadata.get("epoch"),
        "agent_step": metadata.get("agent_step"),
        "score": score_of(metadata),
        "metadata": metadata,
        "files": [file],
        **_describe_policy(opened),
        "problems": problems,
    }
