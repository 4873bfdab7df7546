"""`EvaluationRecords`: where scores and replays go when they are known."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

from metta.errors import MettaError, MettaWarning
from metta.loggers.sinks.wandb_run import upload_replays
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded, warn_of_missing
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.promised import PromisedEvaluations
from metta.rl.resume.run_saver import RunSaver, SavingHook
from metta.rl.training_state import LateScores, TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.sim.suite import SuiteResults

__all__ = ["EvaluationRecords", "Services", "services_of"]


class Services(NamedTuple):
    """The services that an event offers."""

    saving: RunSaver | None
    stats_client: Any
    wandb_run: Any


def services_of(checkpoint_hook: SavingHook | None, stats_client: Any, wandb_run: Any) -> Services:
    """Those of one event."""
    saving = None if checkpoint_hook is None else checkpoint_hook.saving
    return Services(saving, stats_client, wandb_run)


class EvaluationRecords:
    """Puts what an evaluation found into the state of the run, its events, its checkpoints and W&B."""

    def __init__(self, evaluator: PolicyEvaluator, promised: PromisedEvaluations) -> None:
        self.evaluator, self.promised = evaluator, promised
        self.eval_scores = EvalRewardSummary()
        self.failures_in_a_row = 0
        self.replays: dict[str, str] = {}
        """Simulation -> path of its newest replay."""
        self.latest_replay_uri: str | None = None
        """Their W&B addresses, if they were uploaded."""

    def take_scores(
        self,
        state: TrainerState,
        moment: EvaluationRequest,
        results: SuiteResults,
        services: Services,
        *,
        is_over: bool = False,
    ) -> None:
        """Note late scores; the event comes last, because it marks them as done."""
        self.evaluator.results, scores = results, results.summary
        warn_of_missing(results, moment.epoch)
        if is_over and moment.epoch == state.epoch:
            state.record_scores(scores)
        elif services.saving is not None and moment.policy_uri is not None:
            services.saving.save_late_score(moment.epoch, scores)
        if (
            not self.promised.is_recorded("evaluation", moment.epoch)
            and state.late_scores is not None
        ):
            state.late_scores.append(LateScores(moment.epoch, moment.agent_step, scores))
        self.record(moment, scores, results, services.stats_client, is_late=True)

    def record(
        self,
        moment: EvaluationRequest,
        scores: EvalRewardSummary,
        results: SuiteResults | None,
        stats_client: Any,
        *,
        is_late: bool = False,
    ) -> None:
        """The event of an evaluation."""
        self.failures_in_a_row = 0
        self.eval_scores = scores
        if stats_client is None or self.promised.is_recorded("evaluation", moment.epoch):
            return
        payload = scores.to_dict()
        if results is not None:
            payload["episodes"] = {name: one.summary() for name, one in results.episodes.items()}
        if is_late:  # no row of metrics has these scores
            payload["late_row"] = scores.to_metrics()
        stats_client.record_evaluation(
            epoch=moment.epoch,
            agent_step=moment.agent_step,
            policy_uri=moment.policy_uri,
            scores=payload,
        )

    def report_replays(
        self, moment: EvaluationRequest, recorded: Recorded, services: Services
    ) -> None:
        """Events and uploads of what was recorded, and a warning for what could not be."""
        recorded.warn(moment.epoch)
        self.replays |= recorded.files
        record = getattr(services.stats_client, "record_replay", None)
        for name, path in recorded.files.items():
            if record is not None and not self.promised.is_recorded("replay", moment.epoch, name):
                record(**moment.about(), simulation=name, uri=Path(path).absolute().as_uri())
        if services.wandb_run is not None and recorded.files:
            try:
                self.latest_replay_uri = upload_replays(
                    services.wandb_run, recorded.files, moment.about()
                )
            except MettaError as error:
                warnings.warn(f"{error}; training continues", MettaWarning, stacklevel=2)

    def fail(self, epoch: int, error: Exception) -> None:
        """Warn of a failed evaluation; several in a row raise."""
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
