"""Playing policies for scores."""

from metta.sim.episode_scores import AgentResults, EpisodeScores
from metta.sim.scores import EvalRewardSummary
from metta.sim.simulation import Observer, run_episodes
from metta.sim.suite import Simulation, SuiteResults, run_suite

__all__ = [
    "AgentResults",
    "EpisodeScores",
    "EvalRewardSummary",
    "Observer",
    "Simulation",
    "SuiteResults",
    "run_episodes",
    "run_suite",
]
