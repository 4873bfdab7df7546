"""`EvaluationManager`: evaluation during a run."""

import os

from metta.agent.policy import Policy
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
from metta.rl.training_state import TrainerState
from metta.sim.episode_scores import EpisodeScores
from metta.sim.scores import EvalRewardSummary
from metta.sim.statistics import Estimate
from metta.sim.suite import SuiteResults

__all__ = ["EvaluationManager"]


class EvaluationManager:
    """The interface of `PolicyEvaluator`; scores are kept in the run's state."""

    def __init__(self, evaluator: PolicyEvaluator, state: TrainerState | None = None) -> None:
        self.evaluator = evaluator
        self.state = state or TrainerState()

    def evaluate(self, policy: Policy) -> EvalRewardSummary:
        """Play the suite's episodes with this policy and keep the scores."""
        self.state.record_scores(self.evaluator.evaluate(policy))
        return self.state.eval_scores

    def finish(self, policy: Policy) -> EvalRewardSummary:
        """Scores of the last epoch: the policy is evaluated, unless that was done in this epoch."""
        is_scored = self.state.eval_epoch == self.state.epoch
        return self.state.eval_scores if is_scored else self.evaluate(policy)

    def record(self, policy: Policy, folder: str | os.PathLike[str]) -> Recorded:
        """Write a replay of each simulation to a folder, under the epoch that the run is in."""
        epoch, step = self.state.epoch, self.state.agent_step
        return self.evaluator.record(policy, folder, epoch=epoch, agent_step=step)

    @property
    def scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.state.eval_scores

    @property
    def episodes(self) -> EpisodeScores | None:
        """Returns and lengths of the training task's episodes behind them."""
        return self.evaluator.last

    @property
    def results(self) -> SuiteResults:
        """Episodes of every simulation behind them."""
        return self.evaluator.results

    def statistics(self) -> dict[str, Estimate]:
        """Score and 95 % interval of each simulation and category of the last evaluation."""
        return self.evaluator.statistics()
