"""`StatsManager`: statistics of a run, from trackers to one row."""

from collections.abc import Mapping, Sequence
from typing import Any

from metta.agent.policy import Policy
from metta.rl.stats import compute_grad_stats, compute_weight_stats, experience_stats, process_stats
from metta.rl.training_state import StatsTracker, TrainerState
from metta.sim.scores import EvalRewardSummary

__all__ = ["StatsManager"]


class StatsManager:
    """The interface of `metta.rl.stats` over the trackers of a run's state."""

    def __init__(self, state: TrainerState | None = None) -> None:
        self.state = state or TrainerState()

    @property
    def tracker(self) -> StatsTracker:
        """Statistics that are not reported yet."""
        return self.state.stats

    def add_rollout_stats(self, stats: Mapping[str, Sequence[float]]) -> None:
        """Add what a rollout reported: lists with one number per episode that ended."""
        self.tracker.add_rollout_stats(stats)
        self.tracker.add_returns(stats.get("episode_return", ()))

    def compute_grad_stats(self, policy: Policy) -> dict[str, float]:
        """Statistics of the present gradients, kept for the next row."""
        self.tracker.grad_stats = compute_grad_stats(policy)
        return self.tracker.grad_stats

    def compute_weight_stats(self, policy: Policy) -> dict[str, float]:
        """Statistics of the weights."""
        return compute_weight_stats(policy)

    @property
    def eval_scores(self) -> EvalRewardSummary:
        """The last evaluation."""
        return self.state.eval_scores

    @eval_scores.setter
    def eval_scores(self, scores: EvalRewardSummary) -> None:
        self.state.record_scores(scores)

    def build_stats(
        self, losses_stats: Mapping[str, float], experience: Any = None
    ) -> dict[str, float]:
        """The row of metrics for logging, under the names of the metrics page."""
        sections = {"experience": experience_stats(experience), "grad": self.tracker.grad_stats}
        return process_stats(
            self.tracker,
            losses_stats,
            agent_step=self.state.agent_step,
            epoch=self.state.epoch,
            eval_scores=self.eval_scores,
            sections=sections,
        )

    def clear(self) -> None:
        """Forget what was reported; the next row begins with the present epoch."""
        self.tracker.clear_rollout_stats(self.state.epoch)
