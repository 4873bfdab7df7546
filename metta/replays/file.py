"""Replay files: safetensors of compressed tracks, described by JSON in the header.

Each tensor is the content of a track, as `metta.replays.tracks` describes it; the metadata entry ``replay``
holds what the episode was and the type, shape and length of each track.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from metta.errors import UnsafeFileError
from metta.files import TEMPORARY, atomic_write, remove_file
from metta.replays.replay import Replay, ReplayInfo
from metta.replays.tracks import Track
from metta.store.safe_read import TensorFile, open_tensors
from metta.untrusted.json_files import parse_json

__all__ = [
    "SUFFIX",
    "list_replays",
    "load_replay",
    "read_replay_info",
    "remove_leftovers",
    "replay_name",
    "save_replay",
]

SUFFIX = ".replay"
FORMAT = "metta-replay"
FORMAT_VERSION = 2
MAX_FILE_BYTES = 2**30
_METADATA = "replay"
_LEFTOVER = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{32}")
_LEFTOVER_SECONDS = 3600.0
"""Another process may still be writing younger files."""
_MAX_NAME = 80
_TRACK_KEYS = {"dtype", "shape", "num_frames"}


def replay_name(epoch: int, simulation: str, *, is_taken: bool = False) -> str:
    """What a file is called: ``epoch_000120-training-CartPole-v1.replay``.

    Names that would lose characters, and those that are `is_taken`, get a digest of the simulation's name.
    """
    joined = simulation.replace("/", "-") or "episode"
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", joined)[:_MAX_NAME]
    if plain != joined or is_taken:
        plain += f"-{hashlib.sha256(simulation.encode()).hexdigest()[:8]}"
    return f"epoch_{epoch:06d}-{plain}{SUFFIX}"


def save_replay(path: str | os.PathLike[str], replay: Replay) -> Path:
    """Write a replay atomically; a crash leaves the old file or the new one.

        save_replay("first.replay", record_episode(policy, "CartPole-v1"))

    `UnsafeFileError` if it is larger than what `load_replay` reads.
    """
    _refuse_large(path, sum(len(track.content) for track in replay.tracks.values()))
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "info": replay.info.to_dict(),
        "tracks": {name: track.describe() for name, track in replay.tracks.items()},
    }
    metadata = {_METADATA: json.dumps(about, allow_nan=False)}
    contents = {
        name: np.frombuffer(track.content, np.uint8) for name, track in replay.tracks.items()
    }
    return atomic_write(
        path, lambda target: safetensors.numpy.save_file(contents, target, metadata=metadata)
    )


def load_replay(path: str | os.PathLike[str]) -> Replay:
    """A replay from a file; its states are decompressed when they are looked at, one at a time.

    `UnsafeFileError` if the file is not a replay, or announces more than it can hold. Damaged tracks
    are found when they are played.
    """
    with open_tensors(path) as opened:
        about = _describe(path, opened.announced)
        _refuse_large(path, opened.announced.data_bytes)
        contents = {name: tensor.numpy().tobytes() for name, tensor in opened.load().items()}
    described = about["tracks"]
    if contents.keys() != described.keys():
        raise _not_ours(path, "its tensors are not those of its tracks")
    try:
        tracks = {name: _track(described[name], contents[name]) for name in described}
        return Replay(ReplayInfo.from_dict(about["info"]), tracks)
    except UnsafeFileError as error:
        raise _not_ours(path, str(error)) from error


def read_replay_info(path: str | os.PathLike[str], *, follow_symlink: bool = True) -> ReplayInfo:
    """What a replay is of, by the header of its file alone."""
    with open_tensors(path, follow_symlink=follow_symlink) as opened:
        about = _describe(path, opened.announced)
    try:
        return ReplayInfo.from_dict(about["info"])
    except UnsafeFileError as error:
        raise _not_ours(path, str(error)) from error


def list_replays(folder: str | os.PathLike[str]) -> list[tuple[Path, ReplayInfo]]:
    """Replays in a folder with what they are of, oldest epoch first; not links and unreadable files."""
    found = []
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        if path.name.startswith(TEMPORARY):
            continue
        try:
            found.append((path, read_replay_info(path, follow_symlink=False)))
        except UnsafeFileError:  # loading it by name reports why
            continue
    return sorted(found, key=lambda one: (one[1].epoch or 0, one[0].name))


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what was being written to a folder when its process was killed, an hour ago or longer.

    What cannot be removed stays; links and folders are never removed.
    """
    place = Path(folder)
    with contextlib.suppress(OSError):  # there may be no such folder yet
        found = [path for path in place.iterdir() if _LEFTOVER.fullmatch(path.name)]
        left = [path for path in found if path.is_file() and not path.is_symlink()]
        if left:
            place.touch()  # the clock that dated the files, which may be another computer's
            now = place.stat().st_mtime
        for path in left:
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    remove_file(path)


def _refuse_large(path: str | os.PathLike[str], size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise UnsafeFileError(
            f"{os.fspath(path)!r} has {size} bytes; replays of up to {MAX_FILE_BYTES} bytes are written "
            "and read"
        )


def _describe(path: str | os.PathLike[str], announced: TensorFile) -> dict[str, Any]:
    try:
        about: dict[str, Any] = parse_json(announced.metadata[_METADATA])
        is_ours = isinstance(about, dict) and about["format"] == FORMAT
        version = about["format_version"]
    except (KeyError, TypeError, ValueError) as error:
        raise _not_ours(path, "its header does not describe one") from error
    if not is_ours:
        raise _not_ours(path, "its header does not describe one")
    if version != FORMAT_VERSION:
        raise UnsafeFileError(
            f"{os.fspath(path)!r} has replay format {version!r:.40}, this version of metta reads "
            f"{FORMAT_VERSION}; play it with the version that wrote it, or record it again"
        )
    if about.keys() != {"format", "format_version", "info", "tracks"}:
        raise _not_ours(path, f"its header has {sorted(about)!r:.200}")
    tracks = about["tracks"]
    if not isinstance(tracks, dict) or not all(isinstance(one, dict) for one in tracks.values()):
        raise _not_ours(path, "its tracks are not described")
    if any(place.dtype != "U8" or len(place.shape) != 1 for place in announced.places.values()):
        raise _not_ours(path, "its tracks are not bytes")
    return about


def _track(described: Mapping[str, Any], content: bytes) -> Track:
    if described.keys() != _TRACK_KEYS or not isinstance(described["shape"], list):
        raise UnsafeFileError(f"a track is described by {sorted(described)!r:.200}")
    return Track(**{**described, "shape": tuple(described["shape"])}, content=content)


def _not_ours(path: str | os.PathLike[str], why: str) -> UnsafeFileError:
    return UnsafeFileError(
        f"{os.fspath(path)!r} is not a replay, or is damaged: {why}; replays are written by evaluations "
        "with replay_interval, and by save_replay"
    )
