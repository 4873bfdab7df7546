"""`EvaluationManager`: evaluation during a run."""

from metta.agent.policy import Policy
from metta.rl.evaluator import PolicyEvaluator
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.sim.simulation import EpisodeScores

__all__ = ["EvaluationManager"]


class EvaluationManager:
    """A face of `PolicyEvaluator`; scores are kept in the run's state."""

    def __init__(self, evaluator: PolicyEvaluator, state: TrainerState | None = None) -> None:
        self.evaluator = evaluator
        self.state = state or TrainerState()

    def evaluate(self, policy: Policy) -> EvalRewardSummary:
        """Play the suite's episodes with this policy and keep the scores."""
        self.state.record_scores(self.evaluator.evaluate(policy))
        return self.state.eval_scores

    @property
    def scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.state.eval_scores

    @property
    def episodes(self) -> EpisodeScores | None:
        """Returns and lengths of the episodes behind them."""
        return self.evaluator.last
