"""`Replay`: an episode that was recorded, moment by moment."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from metta.envs.grid.layout import Cell
from metta.envs.grid.render import WorldView
from metta.errors import UnsafeFileError
from metta.replays.tracks import MAX_FRAME_BYTES, Track, TrackReader

__all__ = ["MAX_TEXT_BYTES", "Ending", "Kind", "Replay", "ReplayInfo"]

Kind = Literal["grid", "frames", "text", "observations"]
"""What was seen of an episode: grid worlds, images, texts, or what the agents observed."""
Ending = Literal["terminated", "truncated", "cut"]
"""How an episode ended; `cut`: the recording ended before it."""

_STATES = {
    "grid": ("cells", "agents", "cargo", "keys"),
    "frames": ("frames",),
    "text": ("text",),
    "observations": (),
}
_OBSERVATIONS = "observations/"
MAX_TEXT_BYTES = 2**20
"""Of one moment; drawing takes many times as much."""
_MAX_BYTES = 4 * MAX_FRAME_BYTES
"""Limit on one moment over all tracks: what playback keeps in memory."""
_MAX_SIDE = 128
"""Of a grid world, in cells; `GridWorldConfig` has up to 64."""
_MAX_AGENTS = 100_000
_TEXTS = ("env", "env_id", "simulation", "policy_uri")
_COUNTS = ("seed", "num_agents", "num_steps", "epoch", "agent_step")
_MAY_MISS = ("env_id", "policy_uri", "epoch", "agent_step")


@dataclass(frozen=True, kw_only=True)
class ReplayInfo:
    """What a replay is of."""

    kind: Kind
    env: str
    """Short name of the environment."""
    num_agents: int
    num_steps: int
    """Actions taken; there is one state more."""
    ended: Ending
    returns: tuple[float, ...]
    """Total reward of each agent."""
    evaluated: tuple[bool, ...]
    """The agents that the policy played; another policy played the others."""
    seed: int
    """The seed that the environment was reset with."""
    env_id: str | None = None
    """None: the environment was passed in as an object, not by id."""
    env_kwargs: dict[str, Any] | None = None
    """None if they are not plain data."""
    fps: float | None = None
    """Steps per second that the environment would be shown at."""
    simulation: str = ""
    """``category/simulation``, where a suite was played."""
    epoch: int | None = None
    agent_step: int | None = None
    policy_uri: str | None = None

    @property
    def mean_return(self) -> float:
        """Mean over the agents that the policy played."""
        mine = [total for total, own in zip(self.returns, self.evaluated, strict=True) if own]
        return sum(mine) / max(len(mine), 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = dataclasses.asdict(self)
        return {**data, "returns": list(self.returns), "evaluated": list(self.evaluated)}

    @classmethod
    def from_dict(cls, data: Any) -> "ReplayInfo":
        """Rebuild what `to_dict` returned; `UnsafeFileError` for anything else."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, dict) or data.keys() != names:
            found = sorted(data)[:20] if isinstance(data, dict) else type(data).__name__
            raise UnsafeFileError(
                f"a replay is not described by {sorted(names)}, but by {found!r:.400}"
            )
        problem = _problem_of(data)
        if problem:
            raise UnsafeFileError(f"the description of the replay is damaged: {problem}")
        returns = tuple(map(float, data["returns"]))
        lists = {"returns": returns, "evaluated": tuple(data["evaluated"])}
        return cls(**{**data, **lists})


def _problem_of(data: Mapping[str, Any]) -> str:
    if data["kind"] not in get_args(Kind) or data["ended"] not in get_args(Ending):
        return f"kind={data['kind']!r:.80} or ended={data['ended']!r:.80} is unknown"
    for name in _TEXTS:
        is_text = isinstance(data[name], str) or (data[name] is None and name in _MAY_MISS)
        if not is_text:
            return f"{name}={data[name]!r:.80} is not a text"
    for name in _COUNTS:
        is_count = type(data[name]) is int and 0 <= data[name] < 2**63
        if not is_count and not (data[name] is None and name in _MAY_MISS):
            return f"{name}={data[name]!r:.80} is not a count"
    return _problem_of_lists(data)


def _problem_of_lists(data: Mapping[str, Any]) -> str:
    agents, fps, kwargs = data["num_agents"], data["fps"], data["env_kwargs"]
    if not 1 <= agents <= _MAX_AGENTS or data["num_steps"] < 1:
        return f"{agents} agents and {data['num_steps']} steps"
    for name, is_one in (("returns", _is_number), ("evaluated", _is_boolean)):
        found = data[name]
        if not isinstance(found, list) or len(found) != agents or not all(map(is_one, found)):
            return f"{name} needs one entry for each of {agents} agents"
    if kwargs is not None and not isinstance(kwargs, dict):
        return "env_kwargs is not a mapping"
    if fps is not None and not (_is_number(fps) and 0 < fps < 10_000):
        return f"fps={fps!r:.80} is not a rate"
    return ""


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e300 and math.isfinite(value)


class Replay:
    """Tracks of an episode by name; moments count from 0, the reset, to `num_steps`.

        replay = load_replay("epoch_000120-training-CartPole-v1.replay")
        replay.info.kind, replay.info.num_steps
        replay.frame(0)                    # of an environment that draws images
        replay.rewards(3)                  # of the step from moment 3 to moment 4

    Arrays are valid until the next call for another moment: copy what you keep.
    """

    def __init__(self, info: ReplayInfo, tracks: Mapping[str, Track]) -> None:
        self.info = info
        self.tracks = dict(tracks)
        self._readers: dict[str, TrackReader] = {}
        for name in ("actions", "rewards", "valid", *_STATES[info.kind]):
            if name not in self.tracks:
                raise UnsafeFileError(f"a replay of kind {info.kind!r} needs a track {name!r}")
        size = sum(track.frame_bytes for track in self.tracks.values())
        if size > _MAX_BYTES:
            raise UnsafeFileError(
                f"one moment of the replay has {size} bytes over its {len(self.tracks)} tracks; up to "
                f"{_MAX_BYTES} are played"
            )
        for name, track in self.tracks.items():
            self._check(name, track)

    @property
    def num_moments(self) -> int:
        """Number of states, including the first and the last."""
        return self.info.num_steps + 1

    @property
    def leaves(self) -> list[str]:
        """Names of the observations that were recorded."""
        names = [name for name in self.tracks if name.startswith(_OBSERVATIONS)]
        return [name.removeprefix(_OBSERVATIONS) for name in names]

    def actions(self, step: int) -> np.ndarray:
        """``[A, ...]`` actions taken at moment `step`."""
        return self._at("actions", step)

    def rewards(self, step: int) -> np.ndarray:
        """``[A]`` float32 rewards of that step."""
        return self._at("rewards", step)

    def valid(self, step: int) -> np.ndarray:
        """``[A]`` bool: the agents that acted."""
        return self._at("valid", step)

    def world(self, moment: int) -> WorldView:
        """The grid world, to be drawn by `draw_text` or `draw_rgb`."""
        cells, agents, cargo, keys = (self._at(name, moment) for name in _STATES["grid"])
        if (
            cells.max(initial=0) >= Cell.AGENT
            or (agents < 0).any()
            or (agents >= cells.shape).any()
        ):
            raise UnsafeFileError(f"moment {moment} of the replay is damaged: not a grid world")
        return WorldView(cells, agents, cargo, keys, step=moment, task=0)

    def frame(self, moment: int) -> np.ndarray:
        """``[H, W, 3]`` uint8 image."""
        return self._at("frames", moment)

    def text(self, moment: int) -> str:
        """The environment's text, unchanged: an untrusted file may hold terminal control sequences."""
        written = self._at("text", moment).tobytes().rstrip(b"\0")
        return written.decode("utf-8", "replace")

    def observation(self, leaf: str, moment: int) -> np.ndarray:
        """``[A, ...]`` what every agent observed, by the name of a leaf; see `leaves`."""
        return self._at(_OBSERVATIONS + leaf, moment)

    def _at(self, name: str, moment: int) -> np.ndarray:
        if name not in self._readers:
            self._readers[name] = TrackReader(self.tracks[name])
        return self._readers[name].at(moment)

    def _check(self, name: str, track: Track) -> None:
        agents, steps = self.info.num_agents, self.info.num_steps
        is_of_steps = name in ("actions", "rewards", "valid")
        wanted = {
            "rewards": ("float32", (agents,)),
            "valid": ("bool", (agents,)),
            "agents": ("int32", (agents, 2)),
            "cargo": ("int32", (agents,)),
            "keys": ("int32", (agents,)),
        }.get(name, (track.dtype, track.shape))
        fits = (track.dtype, track.shape) == wanted
        fits &= track.num_frames == (steps if is_of_steps else steps + 1)
        match name:
            case "cells":
                fits &= track.dtype == "uint8" and len(track.shape) == 2
                fits &= all(1 <= side <= _MAX_SIDE for side in track.shape)
            case "frames":
                fits &= track.dtype == "uint8" and len(track.shape) == 3
                fits &= track.shape[-1:] == (3,) and all(track.shape)
            case "text":
                fits &= track.dtype == "uint8" and len(track.shape) == 1
                fits &= track.frame_bytes <= MAX_TEXT_BYTES
            case "actions":
                fits &= track.shape[:1] == (agents,)
        if name.startswith(_OBSERVATIONS):
            fits &= track.shape[:1] == (agents,)
        if not fits:
            raise UnsafeFileError(
                f"the track {name!r:.80} has {track.num_frames} arrays of {list(track.shape)} "
                f"{track.dtype}, which are empty, too large, or do not fit {agents} agents and {steps} "
                "steps; the replay is damaged"
            )
