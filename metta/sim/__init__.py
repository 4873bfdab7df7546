"""Playing policies for scores, and for replays."""

from metta.sim.episode_scores import AgentResults, EpisodeScores
from metta.sim.recording import record_episode
from metta.sim.replay import Replay, ReplayInfo
from metta.sim.scores import EvalRewardSummary
from metta.sim.simulation import Observer, run_episodes
from metta.sim.suite import Simulation, SuiteResults, run_suite
from metta.sim.video import export_replay

__all__ = [
    "AgentResults",
    "EpisodeScores",
    "EvalRewardSummary",
    "Observer",
    "Replay",
    "ReplayInfo",
    "Simulation",
    "SuiteResults",
    "export_replay",
    "record_episode",
    "run_episodes",
    "run_suite",
]
