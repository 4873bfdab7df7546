"""`metta replay`: play a recorded episode in the terminal, or write it as a video."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from metta.cli.options import add_out, add_runs, add_terminal_play, written_file
from metta.cli.policy_names import run_and_epoch
from metta.cli.tables import say, shown_bytes, table
from metta.cli.terminal_player import check_speed, play_in_terminal
from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.replays.replay import ReplayInfo

__all__ = ["configure", "find_replays", "run"]

_SUFFIX, _POLICY = ".replay", ".safetensors"
_OF_RUNS = ("config.yaml", "manifest.json")
"""Files that only a run or a checkpoint has."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Plays a recorded episode in the terminal, or writes it to a file. Runs record one at their end, "
        "and more with replay_interval=N. `metta enjoy` plays new episodes."
    )
    parser.epilog = "metta replay first -o first.gif --fps 8"
    parser.add_argument(
        "uri",
        metavar="URI",
        help="a .replay file, file://..., a run or folder, of which the newest replay is played, or a "
        "policy (RUN:best, RUN:v120, a path), of whose epoch it is",
    )
    parser.add_argument("--simulation", metavar="NAME", help="the newest replay of this simulation")
    parser.add_argument("--epoch", type=int, metavar="N", help="the replay of this epoch")
    parser.add_argument("--list", action="store_true", help="only list the replays")
    add_out(parser, "write FILE.mp4, FILE.gif or FILE.txt instead of playing")
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
    add_terminal_play(parser)
    add_runs(parser, writes="file")


def run(options: argparse.Namespace) -> int:
    """List, write or play."""
    check_speed(options.speed)
    found = find_replays(options.uri, Path(options.runs))
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
        play_in_terminal(replay, moments, speed=options.speed, color=not options.no_color)
        return 0
    from metta.replays.video import export_replay

    written = export_replay(
        replay, written_file(options.out), fps=options.fps, scale=options.scale, moments=moments
    )
    say(f"{written}: {len(moments)} moments, {shown_bytes(written.stat().st_size)}")
    return 0


def find_replays(uri: str, output: Path) -> "list[tuple[Path, ReplayInfo]]":
    """Replays of a file, a folder or a run, oldest first; at least one."""
    from metta.replays.file import list_replays, read_replay_info
    from metta.store.run_directory import RunDirectory
    from metta.untrusted.paths import path_of

    place = path_of(uri)
    is_policy = place.name.endswith(_POLICY)
    if not is_policy and (place.is_file() or uri.startswith("file://") or uri.endswith(_SUFFIX)):
        return [(place, read_replay_info(place))]
    epoch = None
    if place.is_dir() and not any((place / name).is_file() for name in _OF_RUNS):
        folder = place
    else:
        run, epoch = run_and_epoch(uri, output)
        folder = RunDirectory(run).place(
            "replay_dir", lambda folder: shlex.join(["metta", "replay", folder])
        )
    found = list_replays(folder)
    if not found:
        raise ConfigError(
            f"there are no replays in {str(folder)!r}; metta enjoy {shlex.quote(uri)} plays new episodes, "
            "and training with replay_interval=N records one every N epochs"
        )
    return found if epoch is None else _of_epoch(found, epoch, uri)


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
    found: "list[tuple[Path, ReplayInfo]]", epoch: int, policy: str = ""
) -> "list[tuple[Path, ReplayInfo]]":
    chosen = [one for one in found if one[1].epoch == epoch]
    if not chosen:
        known = sorted({info.epoch for _, info in found if info.epoch is not None})
        raise ConfigError(
            f"there is no replay of epoch {epoch}; there are {known or 'none with one'}"
            + (f"; metta enjoy {shlex.quote(policy)} plays new episodes" if policy else "")
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
