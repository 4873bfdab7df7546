"""Replays: recording episodes, playing them back, and their files."""

from metta.replays.file import load_replay, save_replay
from metta.replays.recording import record_episode
from metta.replays.replay import Replay, ReplayInfo
from metta.replays.video import export_replay

__all__ = [
    "Replay",
    "ReplayInfo",
    "export_replay",
    "load_replay",
    "record_episode",
    "save_replay",
]
