"""`EvaluationHook`: when a policy is scored."""

import warnings
from typing import Any, ClassVar

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.errors import MettaWarning
from metta.rl.evaluator import PolicyEvaluator
from metta.rl.hooks.background_evaluation import BackgroundEvaluation, Moment
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.intervals import crossed
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.sim.suite import SuiteResults
from metta.train.run_config import EvaluationConfig

__all__ = ["EvaluationHook"]


class EvaluationHook(TrainerHook):
    """Scores the policy at intervals and once at the end; `eval_config=None` never does.

    Scores go to ``trainer_state.eval_scores``. A failed evaluation warns; several in a row raise.

    With ``eval_config.background`` a process of its own plays, and training does not wait for it but at
    the end. Scores are recorded when they arrive, under the epoch that they belong to: in the event log,
    by ``checkpoint_hook.save_late_score`` where there is one, and for other hooks in
    ``trainer_state.shared["late_scores"]`` during the epoch in which they arrived. In which epoch that is
    depends on the machine. What is saved of a run must not, so ``trainer_state.eval_scores`` takes the
    scores of the last epoch only, which are waited for. Scores on their way are lost where a run is killed
    or stopped by a signal.
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
        self._background: BackgroundEvaluation | None = None
        if eval_config is not None and eval_config.background:
            limit = eval_config.eval_timeout_seconds
            self._background = BackgroundEvaluation(self.evaluator, limit)
        self._submitted_epoch: int | None = None

    def on_epoch_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: Any,
        stats_client: Any,
    ) -> None:
        """Score the policy when an interval has passed; take in scores that arrived."""
        config, epoch = self.eval_config, trainer_state.epoch
        if config is None or self.evaluator.config.eval_episodes == 0:
            return
        is_due = crossed(epoch - 1, epoch, config.evaluate_interval)
        if self._background is not None:
            self._take_in(trainer_state, checkpoint_hook, stats_client)
        if is_due:
            self._judge(trainer_state, policy, checkpoint_hook, stats_client)

    def on_training_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: Any,
        stats_client: Any,
    ) -> None:
        """Score the final policy, unless its epoch was scored already, or a signal says to hurry."""
        if trainer_state.shared.get("stop_signal") is not None:
            return
        if self.eval_config is None or self.evaluator.config.eval_episodes == 0:
            return
        epoch = trainer_state.epoch
        is_new = trainer_state.eval_epoch != epoch
        if is_new and self._submitted_epoch != epoch:
            self._judge(trainer_state, policy, checkpoint_hook, stats_client)
        if self._background is not None:
            self._take_in(trainer_state, checkpoint_hook, stats_client, wait=True)
        if is_new and checkpoint_hook is not None and trainer_state.eval_epoch == epoch:
            checkpoint_hook.save_score(trainer_state)

    def close(self) -> None:
        """End the process that plays in the background."""
        self._submitted_epoch = None
        if self._background is not None:
            self._background.close()

    def _judge(
        self, state: TrainerState, policy: Policy, checkpoint_hook: Any, stats_client: Any
    ) -> None:
        uri = checkpoint_hook and checkpoint_hook.policy_uri_of(state.epoch)
        moment = Moment(state.epoch, state.agent_step, uri)
        try:
            if self._background is not None:
                self._submitted_epoch = state.epoch
                self._background.submit(moment, policy)
                return
            scores = self.evaluator.evaluate(policy)
        except Exception as error:  # noqa: BLE001  # raised again where it is not the first
            self._fail(moment.epoch, error)
            return
        results = getattr(self.evaluator, "results", None)
        state.record_scores(scores)
        self._record(moment, scores, results, stats_client)

    def _take_in(
        self, state: TrainerState, checkpoint_hook: Any, stats_client: Any, *, wait: bool = False
    ) -> None:
        """Record what the background found out since the last time."""
        assert self._background is not None
        state.shared.pop("late_scores", None)
        for outcome in self._background.collect(wait=wait):
            moment, results = outcome.moment, outcome.results
            if results is None:
                assert outcome.error is not None
                self._fail(moment.epoch, outcome.error)
                continue
            self.evaluator.results = results
            _tell_of_missing(moment, results)
            self._record(moment, results.summary, results, stats_client)
            state.shared["late_scores"] = results.summary
            save = getattr(checkpoint_hook, "save_late_score", None)
            if wait and moment.epoch == state.epoch:
                state.record_scores(results.summary)
            elif save is not None and moment.policy_uri is not None:
                save(moment.policy_uri, results.summary)

    def _fail(self, epoch: int, error: Exception) -> None:
        config = self.evaluator.config
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= config.max_eval_failures:
            raise error
        warnings.warn(
            f"evaluation failed at epoch {epoch} ({self.failures_in_a_row} in a row, "
            f"{config.max_eval_failures} stop training): {type(error).__name__}: {error}",
            MettaWarning,
            stacklevel=2,
        )

    def _record(
        self,
        moment: Moment,
        scores: EvalRewardSummary,
        results: SuiteResults | None,
        stats_client: Any,
    ) -> None:
        self.failures_in_a_row = 0
        self.eval_scores = scores
        if stats_client is None:
            return
        payload = scores.to_dict()
        if results is not None:
            payload["episodes"] = {name: one.summary() for name, one in results.episodes.items()}
        stats_client.record_evaluation(
            epoch=moment.epoch,
            agent_step=moment.agent_step,
            policy_uri=moment.policy_uri,
            scores=payload,
        )

    def get_eval_scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.eval_scores


def _tell_of_missing(moment: Moment, results: SuiteResults) -> None:
    missing = {name: one.num_missing for name, one in results.episodes.items() if one.num_missing}
    if missing:
        warnings.warn(
            f"simulations of epoch {moment.epoch} were ended by their time limit; episodes that are "
            f"missing: {missing}",
            MettaWarning,
            stacklevel=3,
        )
