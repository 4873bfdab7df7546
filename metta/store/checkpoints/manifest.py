"""The manifest of a checkpoint: its content, and the checksums of the other files."""

import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from metta.errors import CheckpointError, UnsafeFileError
from metta.files import sha256_of
from metta.state_tree import pack_state, unpack_state
from metta.store.safe_read import read_json
from metta.untrusted.files import open_regular, sha256_in

__all__ = [
    "CheckpointEntry",
    "check_content",
    "check_file",
    "entry_of",
    "epoch_in",
    "is_run_id",
    "manifest_of",
    "new_run_id",
    "read_entry",
    "read_log_mark",
    "read_manifest",
    "lower_bound_of",
    "score_of",
    "sealed",
]

FORMAT = "metta-checkpoint"
FORMAT_VERSION = 1
POLICY_FILE, TENSOR_FILE, TREE_FILE = "policy.safetensors", "state.safetensors", "state.json"
MANIFEST_FILE = "manifest.json"
_RUN_KEY, _LOG_MARK = "run_id", "event_log"
FILES = (POLICY_FILE, TENSOR_FILE, TREE_FILE)
_NAME = re.compile(r"epoch_(\d{6,})(?:\.(\d+))?")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of reading data that metta did not write."""


@dataclass(frozen=True)
class CheckpointEntry:
    """The content of a checkpoint's manifest."""

    path: Path
    epoch: int
    agent_step: int
    metadata: dict[str, Any]
    run_id: str | None = None
    """Which run wrote it; None if the manifest has no id, as from older versions of metta."""

    @property
    def score(self) -> float | None:
        """See `score_of`."""
        return score_of(self.metadata)


def score_of(metadata: Mapping[str, Any]) -> float | None:
    """The finite number under ``score``, if there is one; higher is better."""
    return _finite(metadata.get("score"))


def lower_bound_of(metadata: Mapping[str, Any]) -> float | None:
    """The finite number under ``lower_bound``, if there is one: how low the score may be."""
    return _finite(metadata.get("lower_bound"))


def _finite(found: Any) -> float | None:
    try:
        score = float(found) if isinstance(found, int | float) else math.nan
    except OverflowError:  # an integer beyond all floats
        return None
    return score if math.isfinite(score) else None


def new_run_id() -> str:
    """A new id that marks the checkpoints of one run, wherever they are moved or copied."""
    return uuid.uuid4().hex


def is_run_id(value: Any) -> bool:
    """Whether it has the form of an id."""
    return isinstance(value, str) and bool(_RUN_ID.fullmatch(value))


def epoch_in(name: str) -> tuple[int, int] | None:
    """Epoch and number in the name of a checkpoint's folder, ``epoch_000120.2``; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 1))


def manifest_of(
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    run_id: str | None = None,
    log_mark: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest of the files in a folder, to be written last."""
    marked = {} if log_mark is None else {_LOG_MARK: dict(log_mark)}
    return sealed(
        {
            **marked,
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **({} if run_id is None else {_RUN_KEY: run_id}),
            "epoch": int(metadata["epoch"]),
            "agent_step": int(metadata["agent_step"]),
            "metadata": pack_state(metadata)[0],
            "files": {name: _measure(folder / name) for name in FILES},
        }
    )


def _measure(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with the checksum of its own content."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_entry(path: str | os.PathLike[str]) -> CheckpointEntry:
    """The manifest of a checkpoint; missing or truncated files are a `CheckpointError`."""
    source = Path(path)
    manifest = read_manifest(source)
    for name in FILES:
        with _opened(source / name) as (_, size):
            _check_size(source / name, size, manifest)
    return entry_of(source, manifest)


def read_log_mark(folder: Path) -> Any:
    """How far the run's event log had got; None in older manifests."""
    return read_manifest(folder).get(_LOG_MARK)


def read_manifest(folder: Path) -> dict[str, Any]:
    """A manifest that is as it was written, in the folder of its epoch; else a `CheckpointError`."""
    path = folder / MANIFEST_FILE
    if folder.is_symlink():
        raise CheckpointError(f"{str(folder)!r} is a symbolic link; a checkpoint is a folder")
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{str(folder)!r} is not a complete checkpoint: it has no {path.name}"
        )
    try:
        manifest: dict[str, Any] = read_json(path, follow_symlink=False)
        found = manifest["format"], manifest["format_version"]
        if found == (FORMAT, FORMAT_VERSION):
            _require_parts(manifest)
            _require_name(folder, manifest["epoch"])
            return manifest
    except (*MALFORMED, UnsafeFileError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}") from error
    raise CheckpointError(
        f"{str(folder)!r} has format {found[0]!r} version {found[1]!r}; this version of metta reads "
        f"{FORMAT!r} version {FORMAT_VERSION}"
    )


def _require_name(folder: Path, epoch: int) -> None:
    named = epoch_in(folder.name)
    if named is not None and named[0] != epoch:
        raise ValueError(
            f"the folder {folder.name!r} holds the checkpoint of epoch {epoch}: it was renamed or replaced"
        )


def _require_parts(manifest: Mapping[str, Any]) -> None:
    if set(manifest["files"]) != set(FILES):
        raise ValueError(f"it lists the files {sorted(manifest['files'])}, not {sorted(FILES)}")
    sizes = [measured["size"] for measured in manifest["files"].values()]
    counts = (manifest["epoch"], manifest["agent_step"], *sizes)
    if any(type(count) is not int or count < 0 for count in counts):
        raise TypeError("its epoch, agent_step and sizes are not numbers of something")
    if any(type(measured["sha256"]) is not str for measured in manifest["files"].values()):
        raise TypeError("its digests are not texts")
    if not isinstance(unpack_state(manifest["metadata"], {}), dict):
        raise TypeError("its metadata is not a mapping")
    if _RUN_KEY in manifest and not is_run_id(manifest[_RUN_KEY]):
        raise TypeError(f"its {_RUN_KEY} is not an id")
    if manifest != sealed(manifest):
        raise ValueError("its content is not what was written (sha256 differs)")


def check_file(path: Path, manifest: Mapping[str, Any] | None = None) -> None:
    """Check that a file of a checkpoint is as its manifest announces."""
    manifest = manifest or read_manifest(path.parent)
    with _opened(path) as (stream, size):
        check_content(path, stream, size, manifest)


def check_content(
    path: Path, stream: BufferedReader, size: int, manifest: Mapping[str, Any]
) -> None:
    """`check_file` of a file that is open already."""
    _check_size(path, size, manifest)
    if sha256_in(stream) != manifest["files"][path.name]["sha256"]:
        raise CheckpointError(
            f"{str(path)!r} is damaged: its content is not what was written (sha256 differs)"
        )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    if not os.path.lexists(path):
        raise CheckpointError(f"{str(path)!r} is missing, though the manifest lists it")
    try:
        with open_regular(path, follow_symlink=False) as opened:
            yield opened
    except UnsafeFileError as error:
        raise CheckpointError(str(error)) from error


def _check_size(path: Path, size: int, manifest: Mapping[str, Any]) -> None:
    expected = manifest["files"][path.name]["size"]
    if size != expected:
        raise CheckpointError(f"{str(path)!r} is damaged: {size} bytes instead of {expected}")


def entry_of(path: Path, manifest: Mapping[str, Any]) -> CheckpointEntry:
    """A manifest's content, for the checkpoint at `path`."""
    return CheckpointEntry(
        path.absolute(),
        manifest["epoch"],
        manifest["agent_step"],
        unpack_state(manifest["metadata"], {}),
        manifest.get(_RUN_KEY),
    )
