"""Playing policies for scores."""

from metta.sim.simulation import EpisodeScores, run_episodes

__all__ = ["EpisodeScores", "run_episodes"]
