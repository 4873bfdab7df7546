"""Replay files: whole or absent, and data whoever made them."""

import dataclasses
import gzip
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from metta import files
from metta.agent.factory import make_policy
from metta.envs.toy import CorridorEnv
from metta.errors import UnsafeFileError
from metta.replays import file as replay_file
from metta.replays.file import (
    list_replays,
    load_replay,
    read_replay_info,
    replay_name,
    save_replay,
)
from metta.replays.replay import Replay, ReplayInfo
from metta.replays.tracks import MAX_FRAME_BYTES, Track
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.train.run_config import EvaluationConfig
from metta.train.train_config import AgentConfig
from tests.replays.track_cases import encode_track

STEPS, AGENTS = 6, 2


def made(kind: str = "grid", **more: Any) -> Replay:
    """A replay by hand; every number of it is known."""
    generator = np.random.default_rng(1)
    states: dict[str, np.ndarray] = {
        "grid": {
            "cells": generator.integers(0, 6, (STEPS + 1, 5, 7)).astype(np.uint8),
            "agents": generator.integers(0, 5, (STEPS + 1, AGENTS, 2)).astype(np.int32),
            "cargo": generator.integers(0, 2, (STEPS + 1, AGENTS)).astype(np.int32),
            "keys": np.zeros((STEPS + 1, AGENTS), np.int32),
        },
        "frames": {"frames": generator.integers(0, 255, (STEPS + 1, 6, 8, 3)).astype(np.uint8)},
        "text": {"text": generator.integers(65, 90, (STEPS + 1, 9)).astype(np.uint8)},
        "observations": {"observations/a/b": generator.normal(size=(STEPS + 1, AGENTS, 3))},
    }[kind]
    story = {
        "actions": generator.integers(0, 5, (STEPS, AGENTS)),
        "rewards": generator.normal(size=(STEPS, AGENTS)).astype(np.float32),
        "valid": np.ones((STEPS, AGENTS), bool),
    }
    info = {
        "kind": kind, "env": "x", "num_agents": AGENTS, "num_steps": STEPS, "ended": "terminated",
        "returns": tuple(story["rewards"].sum(0).tolist()), "evaluated": (True, False), "seed": 3,
        "simulation": "training/x", "epoch": 2, "env_kwargs": {"a": [1, None]},
    }  # fmt: skip
    tracks = {name: encode_track(arrays) for name, arrays in {**states, **story}.items()}
    return Replay(ReplayInfo(**{**info, **more}), tracks)


def content(replay: Replay) -> dict[str, Any]:
    """Everything in a replay, played to its end."""
    found = {
        name: (track.describe(), np.stack(list(track.frames())).tobytes())
        for name, track in replay.tracks.items()
    }
    if replay.info.kind == "grid":
        for moment in range(replay.num_moments):
            replay.world(moment)
    return {"info": replay.info, **found}


@pytest.mark.parametrize("kind", ["grid", "frames", "text", "observations"])
def test_everything_comes_back_when_a_replay_is_written_and_read(tmp_path: Path, kind: str) -> None:
    replay = made(kind)
    path = save_replay(tmp_path / "new" / "one.replay", replay)
    assert content(load_replay(path)) == content(replay)
    assert read_replay_info(path) == replay.info
    assert [one.name for one in path.parent.iterdir()] == ["one.replay"]


def test_any_reader_of_the_format_can_play_it_when_it_knows_json_and_gzip(tmp_path: Path) -> None:
    path = save_replay(tmp_path / "one.replay", made("text"))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["replay"])
    assert (about["format"], about["format_version"]) == ("metta-replay", 2)
    track = about["tracks"]["text"]
    begin, end = header["text"]["data_offsets"]
    differences = gzip.decompress(content[8 + length + begin : 8 + length + end])
    state, size = bytearray(9), track["shape"][0]
    for moment in range(track["num_frames"]):
        for place in range(size):
            state[place] ^= differences[moment * size + place]
        assert state.decode() == made("text").text(moment)


def test_the_version_is_named_when_a_file_is_of_the_first_format(tmp_path: Path) -> None:
    path = save_replay(tmp_path / "one.replay", made())
    old = rewritten(path, tmp_path / "old.replay", format_version=1)
    with pytest.raises(UnsafeFileError, match=r"replay format 1, .* reads 2; .*record it again"):
        load_replay(old)


def test_the_old_file_stays_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_replay(tmp_path / "one.replay", made("text"))
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "make_durable", full)
    with pytest.raises(OSError, match="No space left"):
        save_replay(path, made("grid"))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def judged(path: Path) -> bool:
    """Whether a file was taken for a whole replay; refusals are the typed error and no other."""
    try:
        content(load_replay(path))
    except UnsafeFileError:
        return False
    return True


@pytest.mark.parametrize("kind", ["grid", "text"])
def test_nothing_but_the_typed_error_comes_when_a_file_is_damaged(
    tmp_path: Path, kind: str
) -> None:
    whole = save_replay(tmp_path / "one.replay", made(kind)).read_bytes()
    broken, generator, taken = tmp_path / "broken.replay", np.random.default_rng(2), 0
    for cut in range(0, len(whole), 97):
        broken.write_bytes(whole[:cut])
        assert not judged(broken)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), generator.integers(1, 4)):
            damaged[place] = generator.integers(0, 256)
        broken.write_bytes(damaged)
        taken += judged(broken)
    assert taken < 100  # a letter of a name may be another one; what was deflated has checksums


def rewritten(path: Path, target: Path, **changes: Any) -> Path:
    """The same streams under another description."""
    with safetensors.safe_open(path, framework="np") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
        about = json.loads(opened.metadata()["replay"])
    for name, value in changes.items():
        place: Any = about
        *folders, last = name.split("__")
        for folder in folders:
            place = place[folder]
        place[last] = value
    safetensors.numpy.save_file(tensors, target, metadata={"replay": json.dumps(about)})
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "else"},
        {"format_version": 3},
        {"more": 1},
        {"tracks": []},
        {"tracks__cells__shape": [2**30, 2**30]},
        {"tracks__cells__shape": [2**26]},
        {"tracks__cells__shape": "ab"},
        {"tracks__cells__dtype": "object"},
        {"tracks__cells__num_frames": 1_000_001},
        {"tracks__cells__num_frames": STEPS},
        {"tracks__cells__more": 1},
        {"tracks__agents__dtype": "float32"},
        {"tracks__rewards__shape": [1, 2]},
        {"tracks__other": {}},
        {"info__kind": "film"},
        {"info__kind": "frames"},
        {"info__num_steps": 2**70},
        {"info__num_steps": STEPS + 1},
        {"info__num_steps": True},
        {"info__num_agents": 3},
        {"info__num_agents": 10**9},
        {"info__returns": [1.0]},
        {"info__returns": ["a", "b"]},
        {"info__evaluated": [1, 0]},
        {"info__env": None},
        {"info__env_kwargs": []},
        {"info__fps": 0},
        {"info__epoch": -1},
        {"info__more": 1},
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_a_file_is_refused_when_its_header_asks_for_what_cannot_be(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = save_replay(tmp_path / "one.replay", made())
    assert judged(rewritten(path, tmp_path / "same.replay"))
    assert not judged(rewritten(path, tmp_path / "other.replay", **changes))


def test_a_world_is_refused_when_its_cells_or_agents_cannot_be() -> None:
    good = made()
    cells = np.full((STEPS + 1, 5, 7), 7, np.uint8)
    outside = np.full((STEPS + 1, AGENTS, 2), 6, np.int32)
    for name, wrong in (("cells", cells), ("agents", outside), ("agents", -outside)):
        replay = Replay(good.info, {**good.tracks, name: encode_track(wrong)})
        with pytest.raises(UnsafeFileError, match="not a grid world"):
            replay.world(0)


def test_other_files_are_told_apart_when_they_are_no_replays(tmp_path: Path) -> None:
    path = tmp_path / "one.replay"
    with pytest.raises(UnsafeFileError, match="cannot be read"):
        load_replay(path)
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(UnsafeFileError, match="a pickle of protocol 4"):
        load_replay(path)
    safetensors.numpy.save_file({"a": np.zeros(3)}, path)
    with pytest.raises(UnsafeFileError, match="does not describe one"):
        load_replay(path)


def test_a_bomb_is_refused_when_its_streams_inflate_to_more_than_they_say(tmp_path: Path) -> None:
    replay = made("text")
    bomb = gzip.compress(bytes(2**24))
    replay.tracks["text"] = dataclasses.replace(replay.tracks["text"], content=bomb)
    path = save_replay(tmp_path / "one.replay", replay)
    loaded = load_replay(path)
    with pytest.raises(UnsafeFileError):
        loaded.text(STEPS)


def test_names_are_plain_and_distinct_when_simulations_are_not() -> None:
    assert replay_name(7, "training/CartPole-v1") == "epoch_000007-training-CartPole-v1.replay"
    names = ["a/b", "a/ä", "a/ö", "a/../../x", "", "a/" + "x" * 300, "a/" + "x" * 301]
    found = [replay_name(1, name) for name in names] + [replay_name(1, "a/b", is_taken=True)]
    assert len(set(found)) == len(found)
    assert all("/" not in name and len(name) < 128 for name in found)


def test_replays_are_listed_by_epoch_when_a_folder_has_many(tmp_path: Path) -> None:
    for epoch in (10, 2, 200):
        save_replay(tmp_path / replay_name(epoch, "b/x"), made("text", epoch=epoch))
    (tmp_path / "broken.replay").write_bytes(b"nothing")
    (tmp_path / "other.txt").write_bytes(b"nothing")
    assert [info.epoch for _, info in list_replays(tmp_path)] == [2, 10, 200]
    assert list_replays(tmp_path / "nowhere") == []


def test_a_track_is_needed_when_the_kind_says_so() -> None:
    tracks: dict[str, Track] = made().tracks
    del tracks["cargo"]
    with pytest.raises(UnsafeFileError, match="needs a track 'cargo'"):
        Replay(made().info, tracks)


def zeros(num_frames: int, shape: tuple[int, ...], dtype: str = "uint8") -> Track:
    """A track of nothing; only its numbers are looked at."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    return Track(dtype, shape, num_frames, gzip.compress(bytes(size * num_frames)))


def test_a_replay_is_refused_when_its_tracks_are_too_large_together() -> None:
    good = made("observations")
    one = zeros(STEPS + 1, (AGENTS, MAX_FRAME_BYTES // AGENTS))
    leaves = {f"observations/{number}": one for number in range(4)}
    with pytest.raises(UnsafeFileError, match="one moment of the replay has"):
        Replay(good.info, {**good.tracks, **leaves})
    del leaves["observations/0"]
    assert len(Replay(good.info, {**good.tracks, **leaves}).leaves) == 4


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("frames", (0, 5, 3)),
        ("frames", (5, 0, 3)),
        ("grid", (0, 7)),
        ("grid", (7, 0)),
        ("grid", (129, 7)),
        ("grid", (1, 2**20)),
        ("text", (2**20 + 1,)),
    ],
)
def test_a_replay_is_refused_when_its_states_are_empty_or_cannot_be(
    kind: str, shape: tuple[int, ...]
) -> None:
    good = made(kind)
    name = {"grid": "cells"}.get(kind, kind)
    with pytest.raises(UnsafeFileError, match="empty, too large"):
        Replay(good.info, {**good.tracks, name: zeros(STEPS + 1, shape)})


@pytest.mark.parametrize(
    ("kind", "shape"), [("frames", (1, 1, 3)), ("grid", (128, 128)), ("text", (2**20,))]
)
def test_a_replay_is_taken_when_its_states_are_as_large_as_they_may_be(
    kind: str, shape: tuple[int, ...]
) -> None:
    good = made(kind)
    name = {"grid": "cells"}.get(kind, kind)
    Replay(good.info, {**good.tracks, name: zeros(STEPS + 1, shape)})


def test_a_replay_is_not_written_when_it_would_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = made()
    size = sum(len(track.content) for track in replay.tracks.values())
    monkeypatch.setattr(replay_file, "MAX_FILE_BYTES", size)
    path = save_replay(tmp_path / "one.replay", replay)
    assert judged(path)
    monkeypatch.setattr(replay_file, "MAX_FILE_BYTES", size - 1)
    assert not judged(path)
    with pytest.raises(UnsafeFileError, match=f"has {size} bytes"):
        save_replay(tmp_path / "two.replay", replay)
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_writers_go_when_an_evaluation_records(tmp_path: Path) -> None:
    old, young = tmp_path / f".tmp-{'a1' * 16}", tmp_path / f".tmp-{'b2' * 16}"
    others = [tmp_path / ".tmp-notes", tmp_path / f"x.tmp-{'a1' * 16}", tmp_path / "old.replay"]
    folder, link = tmp_path / f".tmp-{'c3' * 16}", tmp_path / f".tmp-{'d4' * 16}"
    for path in (old, young, *others):
        path.write_bytes(b"half")
    folder.mkdir()
    link.symlink_to(others[0])
    for path in (old, *others, folder):
        os.utime(path, (time.time() - 4000,) * 2)
    evaluator = PolicyEvaluator(CorridorEnv, EvaluationConfig(replay_max_steps=2))
    env = CorridorEnv()
    policy = make_policy(env.observation_space, env.action_space, AgentConfig(hidden_size=8))
    recorded = evaluator.record(policy, tmp_path)
    assert not recorded.failures
    written = {Path(path) for path in recorded.files.values()}
    assert set(tmp_path.iterdir()) == {young, *others, folder, link, *written}
    assert not evaluator.record(policy, tmp_path / "not yet there").failures
