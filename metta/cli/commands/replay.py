"""`metta replay`: play a recorded episode in the terminal, or write it as a video."""

import argparse
import re
import shlex
import shutil
import sys
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.commands.resume import find_run
from metta.cli.options import add_output
from metta.cli.tables import say, shown_bytes, table
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.replays.replay import Replay, ReplayInfo

__all__ = ["configure", "find_replays", "run"]

_SUFFIX = ".replay"
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_MARGIN = 2
"""Lines of a terminal that are left for captions."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Plays a recorded episode in the terminal, or writes it to a file. Runs record replays with "
        "replay_interval=N."
    )
    parser.epilog = "metta replay first --out first.gif --fps 8"
    parser.add_argument(
        "uri",
        metavar="URI",
        help="a .replay file, file://..., or a run or folder, of which the newest replay is played",
    )
    parser.add_argument("--simulation", metavar="NAME", help="the newest replay of this simulation")
    parser.add_argument("--epoch", type=int, metavar="N", help="the replay of this epoch")
    parser.add_argument("--list", action="store_true", help="only list the replays")
    parser.add_argument(
        "--out", metavar="FILE", help="write FILE.mp4, FILE.gif or FILE.txt instead of playing"
    )
    parser.add_argument(
        "--fps",
        type=float,
        metavar="N",
        help="moments per second of the file (default: as recorded)",
    )
    parser.add_argument(
        "--scale", type=int, metavar="N", help="pixels of the file for each cell or pixel"
    )
    parser.add_argument(
        "--steps", metavar="A:B", help="only moments A to B-1; either may be left out"
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=8.0,
        metavar="N",
        help="steps per second in the terminal (default: %(default)g)",
    )
    parser.add_argument("--no-color", action="store_true", help="signs only")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """List, write or play."""
    if not 0 < options.speed <= 1000:
        raise ConfigError(f"--speed {options.speed:g}; give up to 1000 steps per second")
    found = find_replays(options.uri, Path(options.output))
    if options.simulation is not None:
        found = _of_simulation(found, options.simulation)
    if options.epoch is not None:
        found = _of_epoch(found, options.epoch)
    if options.list:
        say(_table(found))
        return 0
    from metta.replays.file import load_replay

    newest = found[-1][1].epoch
    path = next(path for path, info in found if info.epoch == newest)
    replay = load_replay(path)
    moments = _moments(options.steps, replay.num_moments)
    if options.out is None:
        _play(replay, moments, options)
        return 0
    from metta.replays.video import export_replay

    written = export_replay(
        replay, options.out, fps=options.fps, scale=options.scale, moments=moments
    )
    say(f"{written}: {len(moments)} moments, {shown_bytes(written.stat().st_size)}")
    return 0


def find_replays(uri: str, output: Path) -> "list[tuple[Path, ReplayInfo]]":
    """Replays of a file, a folder or a run, oldest first; at least one."""
    from metta.replays.file import list_replays, read_replay_info
    from metta.store.run_directory import RunDirectory
    from metta.untrusted.paths import path_of

    place = path_of(uri)
    if place.is_file() or uri.startswith("file://") or uri.endswith(_SUFFIX):
        return [(place, read_replay_info(place))]
    if place.is_dir() and not (place / "config.yaml").is_file():
        folder = place
    else:
        folder = RunDirectory(find_run(uri, output)).place(
            "replay_dir", lambda folder: shlex.join(["metta", "replay", folder])
        )
    found = list_replays(folder)
    if not found:
        raise ConfigError(
            f"there are no replays in {str(folder)!r}; train with replay_interval=N to record one every N "
            "epochs, or use metta eval POLICY_URI --replays DIR"
        )
    return found


def _of_simulation(
    found: "list[tuple[Path, ReplayInfo]]", name: str
) -> "list[tuple[Path, ReplayInfo]]":
    chosen = [one for one in found if one[1].simulation == name]
    if not chosen:
        known = sorted({info.simulation for _, info in found})
        raise ConfigError(
            f"there is no replay of the simulation {name!r}; there are {printable(', '.join(known))}"
        )
    return chosen


def _of_epoch(
    found: "list[tuple[Path, ReplayInfo]]", epoch: int
) -> "list[tuple[Path, ReplayInfo]]":
    chosen = [one for one in found if one[1].epoch == epoch]
    if not chosen:
        known = sorted({info.epoch for _, info in found if info.epoch is not None})
        raise ConfigError(
            f"there is no replay of epoch {epoch}; there are {known or 'none with one'}"
        )
    return chosen


def _table(found: "list[tuple[Path, ReplayInfo]]") -> str:
    rows = [("epoch", "simulation", "kind", "steps", "return", "ended", "size", "file")]
    rows += [
        (
            "-" if info.epoch is None else str(info.epoch),
            info.simulation or info.env,
            info.kind,
            f"{info.num_steps:,}",
            shown_number(info.mean_return),
            info.ended,
            shown_bytes(path.stat().st_size),
            str(path),
        )
        for path, info in found
    ]
    return table(rows)


def _moments(steps: str | None, num_moments: int) -> range:
    """Moments of ``A:B``; negative numbers count from the end."""
    begin, colon, end = (steps or ":").partition(":")
    try:
        chosen = slice(int(begin) if begin else None, int(end) if end else None)
    except ValueError:
        raise ConfigError(f"--steps {steps}; write two numbers, e.g. 10:20, 10: or :20") from None
    moments = range(num_moments)[chosen]
    if not colon or not moments:
        raise ConfigError(
            f"--steps {steps} leaves nothing of moments 0 to {num_moments - 1}; write A:B with A < B"
        )
    return moments


def _play(replay: "Replay", moments: range, options: argparse.Namespace) -> None:
    from metta.replays.video import captioned_texts

    is_terminal = sys.stdout.isatty()
    say(_headline(replay.info))
    if replay.info.kind == "frames" and not is_terminal:
        say("this replay has images: write them with --out FILE.mp4 or FILE.gif, or use a terminal")
        return
    color = is_terminal and not options.no_color
    screen, lines = shutil.get_terminal_size()
    columns = screen
    if replay.info.kind == "frames":
        if options.no_color:
            raise ConfigError(
                "images cannot be shown without colour; leave --no-color out, or use --out"
            )
        columns = _fitting_columns(replay, screen, lines - _MARGIN)
    drawn = 0
    for caption, text in captioned_texts(replay, moments, color=color, width=columns):
        if is_terminal:
            fitting = "\n".join(_cut(line, screen) for line in text.split("\n"))
            drawn = _redraw(f"{fitting}\n{caption[: screen - 1]}", drawn)
            time.sleep(1.0 / options.speed)
        else:
            say(f"--- {caption}\n{text}")


def _fitting_columns(replay: "Replay", columns: int, lines: int) -> int:
    """How wide an image may be so that its half blocks also fit the height."""
    height, width, _ = replay.frame(0).shape
    return max(1, min(columns, 2 * max(lines, 1) * int(width) // int(height)))


def _cut(line: str, columns: int) -> str:
    """The part of a line that a terminal does not wrap; colour codes all stay, since they take no space."""
    kept, left = [], columns
    for piece in _STYLE.split(line):
        if _STYLE.fullmatch(piece):
            kept.append(piece)
            continue
        for sign in piece:
            left -= _columns_of(sign)
            if left >= 0:
                kept.append(sign)
    return "".join(kept)


def _columns_of(sign: str) -> int:
    """How many columns a terminal uses for a character."""
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _redraw(text: str, drawn: int) -> int:
    """Overwrite the last `drawn` lines; returns how many lines were written."""
    back = f"\x1b[{drawn}F\x1b[J" if drawn else ""
    sys.stdout.write(f"{back}{text}\n")
    sys.stdout.flush()
    return text.count("\n") + 1


def _headline(info: "ReplayInfo") -> str:
    parts = [info.simulation or info.env]
    parts += [] if info.epoch is None else [f"epoch {info.epoch:,}"]
    parts += [f"{info.num_agents} agents"] if info.num_agents > 1 else []
    parts += [f"{info.num_steps:,} steps", f"return {shown_number(info.mean_return)}", info.ended]
    return printable(", ".join(parts))
