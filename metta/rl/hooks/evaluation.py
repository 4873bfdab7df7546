"""`EvaluationHook`: when a policy is scored."""

import warnings
from typing import Any, ClassVar

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.errors import MettaWarning
from metta.rl.evaluator import PolicyEvaluator
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.intervals import crossed
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.train.run_config import EvaluationConfig

__all__ = ["EvaluationHook"]


class EvaluationHook(TrainerHook):
    """Scores the policy at intervals and once at the end; `eval_config=None` never does.

    Scores go to ``trainer_state.eval_scores``. A failed evaluation warns; several in a row raise.
    """

    order: ClassVar[int] = 20

    def __init__(
        self,
        eval_config: EvaluationConfig | None,
        curriculum: Curriculum | None = None,
        *,
        evaluator: PolicyEvaluator | None = None,
        seed: int = 0,
    ) -> None:
        self.eval_config = eval_config
        self.curriculum = curriculum or Curriculum()
        self.evaluator = evaluator or PolicyEvaluator(self.curriculum.task, eval_config, seed=seed)
        self.eval_scores = EvalRewardSummary()
        self.failures_in_a_row = 0

    def on_epoch_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: Any,
        stats_client: Any,
    ) -> None:
        """Score the policy when an interval has passed."""
        config, epoch = self.eval_config, trainer_state.epoch
        if config is not None and crossed(epoch - 1, epoch, config.evaluate_interval):
            self._evaluate(trainer_state, policy, checkpoint_hook, stats_client)

    def on_training_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: Any,
        stats_client: Any,
    ) -> None:
        """Score the final policy, unless its epoch was scored already, or a signal says to hurry."""
        hurry = trainer_state.shared.get("stop_signal") is not None
        is_scored = trainer_state.eval_epoch == trainer_state.epoch
        if self.eval_config is not None and not is_scored and not hurry:
            self._evaluate(trainer_state, policy, checkpoint_hook, stats_client)
            if checkpoint_hook is not None and trainer_state.eval_epoch == trainer_state.epoch:
                checkpoint_hook.save_score(trainer_state)

    def _evaluate(
        self, state: TrainerState, policy: Policy, checkpoint_hook: Any, stats_client: Any
    ) -> None:
        config = self.evaluator.config
        if config.eval_episodes == 0:
            return
        try:
            scores = self.evaluator.evaluate(policy)
        except Exception as error:
            self.failures_in_a_row += 1
            if self.failures_in_a_row >= config.max_eval_failures:
                raise
            warnings.warn(
                f"evaluation failed at epoch {state.epoch} ({self.failures_in_a_row} in a row, "
                f"{config.max_eval_failures} stop training): {type(error).__name__}: {error}",
                MettaWarning,
                stacklevel=2,
            )
            return
        self.failures_in_a_row = 0
        self.eval_scores = scores
        state.record_scores(scores)
        if stats_client is not None:
            stats_client.record_evaluation(
                epoch=state.epoch,
                agent_step=state.agent_step,
                policy_uri=checkpoint_hook and checkpoint_hook.policy_uri_of(state.epoch),
                scores=scores.to_dict(),
            )

    def get_eval_scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.eval_scores
