"""Replays for people: texts for terminals, and files that players can play."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from metta.errors import ConfigError, EnvError, MissingExtraError
from metta.replays.playback import half_blocks, image_of, shown_text, text_of
from metta.replays.replay import Replay, ReplayInfo
from metta.replays.video import captioned_texts, export_replay
from tests.replays.track_cases import encode_track

STEPS = 9


def replay_of(kind: str, states: dict[str, np.ndarray], num_agents: int = 1) -> Replay:
    info = ReplayInfo(
        kind=kind, env="x", num_agents=num_agents, num_steps=STEPS, ended="cut",
        returns=(2.0,) * num_agents, evaluated=(True,) * num_agents, seed=0,
    )  # fmt: skip
    rewards = np.full((STEPS, num_agents), 0.5, np.float32)
    story = {
        "actions": np.arange(STEPS * num_agents).reshape(STEPS, num_agents),
        "rewards": rewards,
        "valid": np.ones((STEPS, num_agents), bool),
    }
    tracks = {name: encode_track(arrays) for name, arrays in {**states, **story}.items()}
    return Replay(info, tracks)


@pytest.fixture
def world() -> Replay:
    """One agent that walks along a wall; it carries something in the second half."""
    cells = np.zeros((STEPS + 1, 5, 12), np.uint8)
    cells[:, 0], cells[:, 4], cells[:5, 2, 3] = 1, 1, 2
    agents = np.stack([np.full(STEPS + 1, 1), np.arange(STEPS + 1)], axis=1).astype(np.int32)
    cargo = (np.arange(STEPS + 1) >= 5).astype(np.int32)
    states = {
        "cells": cells,
        "agents": agents[:, None],
        "cargo": cargo[:, None],
        "keys": np.zeros((STEPS + 1, 1), np.int32),
    }
    return replay_of("grid", states)


@pytest.fixture
def film() -> Replay:
    """Images with more colours than a gif can have, and odd sides."""
    down, across = np.mgrid[0:37, 0:51]
    frames = [
        np.stack([(down * 6 + 3 * step) % 256, (across * 5) % 256, 0 * down + 20 * step], axis=-1)
        for step in range(STEPS + 1)
    ]
    return replay_of("frames", {"frames": np.stack(frames).astype(np.uint8)})


def test_every_moment_is_drawn_when_a_grid_world_is_text(world: Replay) -> None:
    assert text_of(world, 2, color=False) == (
        "############\n..a.........\n...*........\n............\n############"
    )
    assert text_of(world, 7, color=False).splitlines()[1:3] == [".......A....", "............"]
    assert "\x1b[38;2;" in text_of(world, 7)


def test_captions_say_what_was_done_and_earned_when_moments_pass(world: Replay) -> None:
    captions = [caption for caption, _ in captioned_texts(world, range(0, 9, 3), color=False)]
    assert captions == [
        "step 0 of 9  return 0",
        "step 3 of 9  actions 2  rewards 0.5  return 1.5",
        "step 6 of 9  actions 5  rewards 0.5  return 3",
    ]


def test_a_terminal_is_not_steered_when_a_text_comes_from_a_file() -> None:
    evil = "a\x1b]0;title\x07\x1b[2J\x1b[41mred\x1b[0m\x9b5n\r\nb\u202e"
    shown = shown_text(evil)
    assert shown == "a\\x1b]0;title\\x07\\x1b[2J\x1b[41mred\x1b[0m\\x9b5n\\r\nb\\u202e\x1b[0m"
    assert "\x1b" not in shown_text(evil, color=False)
    assert shown_text("plain\n") == "plain"


def test_numbers_are_shown_when_only_observations_were_kept() -> None:
    observed = np.arange((STEPS + 1) * 2 * 20, dtype=np.float32).reshape(STEPS + 1, 2, 20)
    replay = replay_of("observations", {"observations/obs": observed}, num_agents=2)
    lines = text_of(replay, 1).splitlines()
    assert lines[0].startswith("obs of agent 0: 40 41 42 ")
    assert lines[1].endswith("75 ... (20 numbers)")


def test_blocks_have_the_colours_of_the_image_when_it_is_shown_in_a_terminal() -> None:
    image = np.zeros((4, 6, 3), np.uint8)
    image[1, 2] = 1, 2, 3
    lines = half_blocks(image, 6).splitlines()
    assert len(lines) == 2
    assert lines[0].split("▀")[2] == "\x1b[38;2;0;0;0;48;2;1;2;3m"
    assert [line.count("▀") for line in half_blocks(image, 3).splitlines()] == [3]
    assert half_blocks(np.zeros((400, 1, 3), np.uint8), 80)


def read_mp4(path: Path, width: int, height: int) -> list[np.ndarray]:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path)]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return list(np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3))


def test_videos_have_every_moment_when_they_are_read_again(
    world: Replay, film: Replay, tmp_path: Path
) -> None:
    path = export_replay(world, tmp_path / "world.mp4", fps=5, scale=8)
    frames = read_mp4(path, 96, 40)
    assert len(frames) == STEPS + 1
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (STEPS + 1, (STEPS + 1) / 5)
    for moment, frame in enumerate(frames):
        difference = frame.astype(int) - image_of(world, moment, scale=8)
        assert np.abs(difference).mean() < 10  # lossy, but the same picture
    assert len(read_mp4(export_replay(film, tmp_path / "film.mp4", scale=1), 52, 38)) == STEPS + 1
    assert {one.name for one in tmp_path.iterdir()} == {"world.mp4", "film.mp4"}


def read_gif(path: Path) -> list[tuple[np.ndarray, int]]:
    """Images and for how many milliseconds each is shown."""
    found = []
    with Image.open(path) as opened:
        for index in range(getattr(opened, "n_frames", 1)):
            opened.seek(index)
            found.append((np.asarray(opened.convert("RGB")), opened.info["duration"]))
    return found


def test_gifs_are_exact_when_there_are_few_colours(world: Replay, tmp_path: Path) -> None:
    frames = read_gif(export_replay(world, tmp_path / "world.gif", fps=8, scale=3))
    assert len(frames) == STEPS + 1
    for moment, (frame, milliseconds) in enumerate(frames):
        assert milliseconds == 120
        assert np.array_equal(frame, image_of(world, moment, scale=3))


def test_gifs_are_close_when_there_are_many_colours(film: Replay, tmp_path: Path) -> None:
    frames = read_gif(export_replay(film, tmp_path / "film.gif"))
    assert len(frames) == STEPS + 1
    for moment, (frame, milliseconds) in enumerate(frames):
        assert milliseconds == 100
        shown = film.frame(moment).repeat(6, 0).repeat(6, 1)  # 51 pixels are small
        assert np.abs(frame.astype(int) - shown).mean() < 25


def test_time_goes_on_when_nothing_changes_in_a_gif(tmp_path: Path) -> None:
    frames = np.zeros((STEPS + 1, 8, 8, 3), np.uint8)
    frames[4:] = 200
    found = read_gif(export_replay(replay_of("frames", {"frames": frames}), tmp_path / "a.gif"))
    assert [milliseconds for _, milliseconds in found] == [400, 600]


def test_texts_are_written_when_the_file_is_one(world: Replay, tmp_path: Path) -> None:
    path = export_replay(world, tmp_path / "world.txt", moments=range(2, 4))
    text = path.read_text()
    assert text.count("--- step") == 2
    assert text.startswith("--- step 2 of 9")
    assert text_of(world, 3, color=False) in text


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("a.avi", {}, r"must end in \.mp4, \.gif, \.txt"),
        ("a.gif", {"fps": 5000}, "fps=5000"),
        ("a.gif", {"fps": 0.0}, "fps=0"),
        ("a.gif", {"scale": 100}, "scale=100"),
        ("a.gif", {"moments": range(0)}, "no moment"),
    ],
)
def test_nothing_is_written_when_the_wish_is_wrong(
    world: Replay, tmp_path: Path, name: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        export_replay(world, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_kinds_are_not_mixed_up_when_they_are_written(film: Replay, tmp_path: Path) -> None:
    words = replay_of("text", {"text": np.full((STEPS + 1, 4), 65, np.uint8)})
    with pytest.raises(ConfigError, match="has no images"):
        export_replay(words, tmp_path / "a.gif")
    with pytest.raises(ConfigError, match="cannot be written as text"):
        export_replay(film, tmp_path / "a.txt")
    assert export_replay(words, tmp_path / "words.txt").read_text().count("AAAA") == STEPS + 1


def test_it_is_told_and_nothing_is_left_when_ffmpeg_fails(
    world: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "false")
    with pytest.raises(EnvError, match="ffmpeg could not write the video"):
        export_replay(world, tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "name"), [("imageio_ffmpeg", "a.mp4"), ("PIL", "a.gif")])
def test_the_extra_is_named_when_it_is_not_installed(
    world: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[video\]"):
        export_replay(world, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_it_is_told_when_ffmpeg_has_ended_before_a_small_video_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        process = popen(*arguments, **options)
        process.wait()
        return process

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", ended)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "false")
    for side in (2, 30):  # all moments fit into what Python buffers, or a few of them
        frames = np.zeros((STEPS + 1, side, side, 3), np.uint8)
        with pytest.raises(EnvError, match="ffmpeg could not write the video"):
            export_replay(replay_of("frames", {"frames": frames}), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_image_is_refused_before_it_is_drawn_when_its_scale_makes_it_huge() -> None:
    wide = replay_of("frames", {"frames": np.zeros((STEPS + 1, 2000, 3000, 3), np.uint8)})
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"scale=64 .* 128000 x 192000 pixels.*use 1 to 3"):
        image_of(wide, 0, scale=64)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    with pytest.raises(ConfigError, match="use 1 to 3"):
        image_of(wide, 0, scale=4)
    assert image_of(wide, 0, scale=3).shape == (6000, 9000, 3)


def test_lines_are_few_when_an_image_is_one_pixel_wide() -> None:
    assert len(half_blocks(np.zeros((100_000, 1, 3), np.uint8), 80).splitlines()) == 1000
