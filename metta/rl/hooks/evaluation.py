"""`EvaluationHook`: when a policy is scored."""

import copy
import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.errors import MettaError, MettaWarning
from metta.loggers.sinks.wandb_run import upload_replays
from metta.rl.evaluate.background import MAX_WAITING, BackgroundEvaluation
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded, warn_of_missing
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.promised import PromisedEvaluations
from metta.rl.hooks.base import TrainerHook
from metta.rl.resume.run_saver import RunSaver, SavingHook
from metta.rl.training_state import LateScores, TrainerState, crossed
from metta.sim.scores import EvalRewardSummary
from metta.sim.suite import SuiteResults
from metta.store.policies.file import load_weights
from metta.train.run_config import EvaluationConfig

__all__ = ["EvaluationHook"]

_WAIT_SECONDS = 0.2
"""How often signals are checked while waiting for the last evaluations."""


class _Services(NamedTuple):
    """The services that an event offers."""

    saving: RunSaver | None
    stats_client: Any
    wandb_run: Any


class EvaluationHook(TrainerHook):
    """Scores the policy at intervals and once at the end; `eval_config=None` never does.

    Scores go to ``trainer_state.eval_scores``. A failed evaluation warns; several in a row raise.

    With ``eval_config.background`` a separate process plays, and training does not wait for it except at
    the end, and while `MAX_WAITING` evaluations are in line. Scores are recorded when they arrive, under
    the epoch that they belong to: by ``checkpoint_hook.saving`` where there is one, in the event
    log, and for other hooks as ``trainer_state.late_scores``. In which epoch that is depends on the
    machine. What is saved of a run must not, so ``trainer_state.eval_scores`` takes the scores of the last
    epoch only. Where the run is saved, policies wait for their scores in files
    (``RunSaver.owed_evaluations``): a run that was killed or stopped does missing evaluations when it is
    resumed.

    Every ``eval_config.replay_interval`` epochs, and once at the end, an episode of each simulation is
    recorded to `replay_dir`, logged as an event, and uploaded if there is a W&B run. What goes
    wrong with a replay warns, and does nothing else.
    """

    order: ClassVar[int] = 20

    def __init__(
        self,
        eval_config: EvaluationConfig | None,
        curriculum: Curriculum | None = None,
        *,
        evaluator: PolicyEvaluator | None = None,
        seed: int = 0,
        replay_dir: str | os.PathLike[str] | None = None,
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
        self._promised = PromisedEvaluations()
        self._submitted_epoch: int | None = None
        self._has_waited = False
        self.replay_dir = None if replay_dir is None else Path(replay_dir).absolute()
        self.replays: dict[str, str] = {}
        """Simulation -> path of its newest replay."""
        self.latest_replay_uri: str | None = None
        """Their W&B addresses, if they were uploaded."""
        self._unrecorded_epoch: int | None = None
        """The last epoch that was trained here, while there is no replay of it."""
        if self._replay_interval and replay_dir is None:
            warnings.warn(
                f"replay_interval={self._replay_interval}, but no folder for replays was given; give "
                "replay_dir, or train with a run_dir",
                MettaWarning,
                stacklevel=2,
            )

    @property
    def _replay_interval(self) -> int:
        return 0 if self.eval_config is None else self.eval_config.replay_interval

    @property
    def _is_off(self) -> bool:
        return self.eval_config is None or self.evaluator.config.eval_episodes == 0

    def on_training_start(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: SavingHook | None,
        stats_client: Any,
    ) -> None:
        """Begin with the evaluations that were pending when the run was interrupted."""
        state, services = trainer_state, _services(checkpoint_hook, stats_client, None)
        state.owes_scores, self._has_waited = False, False
        state.late_scores = None if self._background is None else []
        if self._is_off:
            return
        store = None if services.saving is None else services.saving.owed_evaluations
        for moment, weights in self._promised.take_up(
            store, state.epoch, stats_client, replay_dir=self.replay_dir
        ):
            if self._background is not None:
                self._submitted_epoch = moment.epoch if moment.is_scored else self._submitted_epoch
                self._background.submit(moment, policy, weights)
            else:
                self._evaluate_owed(moment, state, policy, weights, services)
        self._report_awaited(services)

    def _evaluate_owed(
        self,
        moment: EvaluationRequest,
        state: TrainerState,
        policy: Policy,
        weights: Path,
        services: _Services,
    ) -> None:
        """Do here what was promised when evaluation was in the background."""
        before = copy.deepcopy(policy)
        try:
            load_weights(weights, before)
            if moment.is_scored:
                self.evaluator.evaluate(before)
                self._take_scores(state, moment, self.evaluator.results, services)
                self._submitted_epoch = moment.epoch
        except Exception as error:  # noqa: BLE001  # raised again where it is not the first
            self._fail(moment.epoch, error)
            return
        if moment.replay_dir is not None:
            recorded = self._record_replays(before, moment.replay_dir, moment)
            self._report_replays(moment, recorded, services)

    def on_epoch_start(self, stats_client: Any) -> None:
        """What arrived was recorded by all hooks: it is not pending any more."""
        self._promised.keep_only(self._unfinished, stats_client)

    @property
    def _unfinished(self) -> set[int]:
        return set() if self._background is None else self._background.unfinished

    def on_epoch_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: SavingHook | None,
        stats_client: Any,
        wandb_run: Any = None,
    ) -> None:
        """Score and record the policy when their intervals have passed; record what arrived."""
        config, epoch = self.eval_config, trainer_state.epoch
        if config is None or self._is_off:
            return
        services = _services(checkpoint_hook, stats_client, wandb_run)
        self._unrecorded_epoch = epoch
        is_scored = crossed(epoch - 1, epoch, config.evaluate_interval)
        is_recorded = crossed(epoch - 1, epoch, config.replay_interval)
        if self._background is not None:
            trainer_state.late_scores = []
            self._take_in(trainer_state, services)
        moment = self._moment(trainer_state, services, is_scored, is_recorded)
        self._evaluate(moment, trainer_state, policy, services)

    def on_training_end(
        self,
        trainer_state: TrainerState,
        policy: Policy,
        checkpoint_hook: SavingHook | None,
        stats_client: Any,
        wandb_run: Any = None,
    ) -> None:
        """Score and record the final policy, unless that was done already, or a signal asks to hurry."""
        if self._is_off:
            return
        if self._background is not None:
            trainer_state.late_scores = []
            trainer_state.owes_scores = True  # until they arrive
        if _is_hurried(trainer_state):
            return
        epoch, services = trainer_state.epoch, _services(checkpoint_hook, stats_client, wandb_run)
        is_new = trainer_state.eval_epoch != epoch
        is_scored = is_new and self._submitted_epoch != epoch
        is_recorded = self._unrecorded_epoch == epoch and self._replay_interval > 0
        if is_scored and self._unrecorded_epoch is None:
            # it was trained, perhaps scored, before a crash
            self._promised.look_up([epoch], stats_client)
        moment = self._moment(trainer_state, services, is_scored, is_recorded)
        self._evaluate(moment, trainer_state, policy, services)
        if self._background is not None:
            self._take_in(trainer_state, services, wait=True)
            trainer_state.owes_scores = bool(self._background.unfinished)
        elif is_new and self._submitted_epoch == epoch:  # done when training began
            trainer_state.record_scores(self.eval_scores)

    def close(self, exc: BaseException | None = None, stats_client: Any = None) -> None:
        """End the process that plays in the background; what it has not done stays pending."""
        if exc is None:  # else some hooks have perhaps not recorded what arrived last
            self._promised.keep_only(self._unfinished, stats_client)
        self._submitted_epoch = self._unrecorded_epoch = None
        if self._background is not None:
            self._background.close()

    def _moment(
        self, state: TrainerState, services: _Services, is_scored: bool, is_recorded: bool
    ) -> EvaluationRequest:
        uri = None if services.saving is None else services.saving.policy_uri_of(state.epoch)
        folder = str(self.replay_dir) if is_recorded and self.replay_dir is not None else None
        return EvaluationRequest(state.epoch, state.agent_step, uri, is_scored, folder)

    def _evaluate(
        self, moment: EvaluationRequest, state: TrainerState, policy: Policy, services: _Services
    ) -> None:
        """Do what this request asks for, or have it done in the background."""
        if not moment.is_scored and moment.replay_dir is None:
            return
        if moment.replay_dir is not None:
            self._unrecorded_epoch = None
        try:
            if self._background is not None:
                self._submit(self._background, moment, state, policy, services)
                return
            scores = self.evaluator.evaluate(policy) if moment.is_scored else None
        except Exception as error:  # noqa: BLE001  # raised again where it is not the first
            self._fail(moment.epoch, error)
            return
        if scores is not None:
            results = getattr(self.evaluator, "results", None)
            state.record_scores(scores)
            self._record(moment, scores, results, services.stats_client)
        if moment.replay_dir is not None:
            recorded = self._record_replays(policy, moment.replay_dir, moment)
            self._report_replays(moment, recorded, services)

    def _submit(
        self,
        background: BackgroundEvaluation,
        moment: EvaluationRequest,
        state: TrainerState,
        policy: Policy,
        services: _Services,
    ) -> None:
        if background.wait_for_room(lambda: _is_hurried(state)) and not self._has_waited:
            self._has_waited = True
            warnings.warn(
                f"{MAX_WAITING} evaluations are in line, so training waits for them; raise "
                "evaluate_interval, or lower eval_episodes",
                MettaWarning,
                stacklevel=2,
            )
        store = None if services.saving is None else services.saving.owed_evaluations
        try:
            weights = self._promised.add(store, moment, policy)
        except (OSError, MettaError) as error:
            weights = None  # it is played from memory, and lost with this process
            warnings.warn(
                f"the policy of epoch {moment.epoch} could not be kept until it is scored: {error}; if "
                "this run is killed before that, its score is lost",
                MettaWarning,
                stacklevel=2,
            )
        background.submit(moment, policy, weights)
        self._submitted_epoch = moment.epoch if moment.is_scored else self._submitted_epoch
        self._report_awaited(services)

    def _record_replays(self, policy: Policy, folder: str, moment: EvaluationRequest) -> Recorded:
        try:
            return self.evaluator.record(policy, folder, **moment.about())
        except Exception as error:  # noqa: BLE001  # a user's evaluator; reported in a warning
            return Recorded(failures={"all": f"{type(error).__name__}: {error}"})

    def _report_replays(
        self, moment: EvaluationRequest, recorded: Recorded, services: _Services
    ) -> None:
        """Events and uploads of what was recorded, and a warning for what could not be."""
        recorded.warn(moment.epoch)
        self.replays |= recorded.files
        record = getattr(services.stats_client, "record_replay", None)
        for name, path in recorded.files.items():
            if record is not None and not self._promised.is_recorded("replay", moment.epoch, name):
                record(**moment.about(), simulation=name, uri=Path(path).absolute().as_uri())
        if services.wandb_run is not None and recorded.files:
            try:
                self.latest_replay_uri = upload_replays(
                    services.wandb_run, recorded.files, moment.about()
                )
            except MettaError as error:
                warnings.warn(f"{error}; training continues", MettaWarning, stacklevel=2)

    def _take_in(self, state: TrainerState, services: _Services, *, wait: bool = False) -> None:
        """Record what the background found out since the last time."""
        assert self._background is not None
        while True:
            for outcome in self._background.collect():
                moment, results = outcome.moment, outcome.results
                if outcome.error is not None:
                    self._fail(moment.epoch, outcome.error)
                elif results is None:
                    self._report_replays(moment, outcome.recorded, services)
                else:
                    self._take_scores(state, moment, results, services, is_over=wait)
            self._report_awaited(services)
            if not wait or not self._background.unfinished or _is_hurried(state):
                return
            self._background.wait(_WAIT_SECONDS)

    def _report_awaited(self, services: _Services) -> None:
        """Checkpoints of policies that are being scored may be the best, and must not go before that."""
        if services.saving is not None and self._background is not None:
            services.saving.await_scores(self._background.epochs)

    def _take_scores(
        self,
        state: TrainerState,
        moment: EvaluationRequest,
        results: SuiteResults,
        services: _Services,
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
            not self._promised.is_recorded("evaluation", moment.epoch)
            and state.late_scores is not None
        ):
            state.late_scores.append(LateScores(moment.epoch, moment.agent_step, scores))
        self._record(moment, scores, results, services.stats_client, is_late=True)

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
        moment: EvaluationRequest,
        scores: EvalRewardSummary,
        results: SuiteResults | None,
        stats_client: Any,
        *,
        is_late: bool = False,
    ) -> None:
        self.failures_in_a_row = 0
        self.eval_scores = scores
        if stats_client is None or self._promised.is_recorded("evaluation", moment.epoch):
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

    def get_eval_scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.eval_scores


def _services(checkpoint_hook: SavingHook | None, stats_client: Any, wandb_run: Any) -> _Services:
    saving = None if checkpoint_hook is None else checkpoint_hook.saving
    return _Services(saving, stats_client, wandb_run)


def _is_hurried(state: TrainerState) -> bool:
    """Whether a signal asked the run to stop soon."""
    return state.shared.get("stop_signal") is not None
