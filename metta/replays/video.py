"""Replays as files for people: mp4, gif or text."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metta.errors import ConfigError, EnvError, MissingExtraError
from metta.files import atomic_write
from metta.replays.playback import caption_of, image_of, text_of
from metta.replays.replay import Replay

__all__ = ["ENDINGS", "captioned_texts", "export_replay"]

ENDINGS = (".mp4", ".gif", ".txt")
_FPS = 10.0
_MAX_ERROR_BYTES = 2000
_TEXT_WIDTH = 80


def export_replay(
    replay: Replay,
    path: str | os.PathLike[str],
    *,
    fps: float | None = None,
    scale: int | None = None,
    moments: range | None = None,
) -> Path:
    """Write a replay as ``.mp4`` or ``.gif`` (extra `video`), or as ``.txt``; the file's ending decides.

        export_replay(load_replay("first.replay"), "first.gif", fps=8)

    `fps` moments are shown in a second; None: the environment's rate, or 10. `scale` is that of
    `image_of`. The file appears as a whole or not at all.
    """
    target = Path(path)
    shown = range(replay.num_moments) if moments is None else moments
    rate = (replay.info.fps or _FPS) if fps is None else fps
    if not 0.01 <= rate <= 1000:
        raise ConfigError(f"fps={fps}; give 0.01 to 1000 moments per second")
    if not shown:
        raise ConfigError("no moments of the replay were chosen; choose at least one")
    match target.suffix.lower():
        case ".mp4":
            return atomic_write(target, lambda file: _write_mp4(file, replay, shown, rate, scale))
        case ".gif":
            return atomic_write(target, lambda file: _write_gif(file, replay, shown, rate, scale))
        case ".txt":
            return atomic_write(target, lambda file: _write_text(file, replay, shown))
    raise ConfigError(f"{str(target)!r} must end in {', '.join(ENDINGS)}; rename it")


def _write_text(file: Path, replay: Replay, moments: range) -> None:
    if replay.info.kind == "frames":
        raise ConfigError("a replay of images cannot be written as text; write it as .mp4 or .gif")
    with file.open("w", encoding="utf-8") as stream:
        for caption, text in captioned_texts(replay, moments, color=False):
            stream.write(f"--- {caption}\n{text}\n")


def captioned_texts(
    replay: Replay, moments: range, *, color: bool, width: int = _TEXT_WIDTH
) -> Iterator[tuple[str, str]]:
    """A line and a drawing for each moment."""
    totals, reached = np.zeros(replay.info.num_agents), 0
    for moment in moments:
        for step in range(reached, moment):
            totals += replay.rewards(step)
        reached = moment
        text = text_of(replay, moment, color=color, width=width)
        yield caption_of(replay, moment, totals), text


def _write_mp4(file: Path, replay: Replay, moments: range, fps: float, scale: int | None) -> None:
    first = _even(image_of(replay, moments[0], scale=scale))
    try:
        from imageio_ffmpeg import (  # type: ignore[import-untyped]  # it has no annotations
            get_ffmpeg_exe,
        )
    except ImportError:
        raise MissingExtraError("imageio-ffmpeg", "video", "writing mp4 files") from None
    taken = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{first.shape[1]}x{first.shape[0]}"]
    made = ["-an", "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-f", "mp4"]
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *taken, "-r", f"{fps:g}", "-i", "-"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, *made, str(file)], stdin=subprocess.PIPE, stderr=log)
        # outside: leaving the process writes what is still buffered, and fails again
        with contextlib.suppress(BrokenPipeError), process:
            assert process.stdin is not None
            for moment in moments:
                process.stdin.write(_even(image_of(replay, moment, scale=scale)).tobytes())
            process.stdin.close()
        if process.returncode:
            log.seek(0)
            text = log.read(_MAX_ERROR_BYTES).decode("utf-8", "replace").strip()
            raise EnvError(f"ffmpeg could not write the video: {text}; try another scale, or .gif")


def _even(image: np.ndarray) -> np.ndarray:
    """Videos have even sides: the last row or column is repeated where they are not."""
    height, width = image.shape[:2]
    return np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _write_gif(file: Path, replay: Replay, moments: range, fps: float, scale: int | None) -> None:
    image_of(replay, moments[0], scale=scale)
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "video", "writing gif files") from None
    # Pillow picks a palette for each image; up to 256 colours are kept exactly
    images = (Image.fromarray(image_of(replay, moment, scale=scale)) for moment in moments)
    first = next(images)
    # times of a gif are hundredths of a second, and viewers slow down below two of them
    hundredths = max(2, round(100 / fps))
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=10 * hundredths,
        loop=0,
        optimize=False,
    )
