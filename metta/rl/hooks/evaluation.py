"""`EvaluationHook`: when a policy is scored."""

import copy
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.errors import ConfigError, MettaError, MettaWarning
from metta.rl.evaluate.background import BackgroundEvaluation
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
from metta.rl.evaluate.outcome import LateEvaluations
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.promised import PromisedEvaluations
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.evaluation_records import EvaluationRecords, Services, services_of
from metta.rl.resume.run_saver import SavingHook
from metta.rl.training_state import TrainerState, crossed
from metta.sim.scores import EvalRewardSummary
from metta.store.policies.file import load_weights
from metta.train.run_config import EvaluationConfig

__all__ = ["EvaluationHook"]

_WAIT_SECONDS = 0.2
"""How often signals are checked while waiting for the last evaluations."""
_QUIET_SECONDS = 1.0
"""So long nothing is said of waiting."""
_MANY = 8
"""Policies that wait for their scores, more than which are worth a warning."""


class EvaluationHook(TrainerHook):
    """Scores the policy at intervals and once at the end; `eval_config=None` never does.

    Scores go to ``trainer_state.eval_scores``. A failed evaluation warns; several in a row raise.

    If ``eval_config.where`` is not ``here``, others play: a separate process, or the workers that
    `evaluations` asks. Training does not wait for them except at the end, for ``end_wait_seconds`` at
    most. Scores are recorded when they arrive, under the epoch that they belong to: by
    ``checkpoint_hook.saving`` where there is one, in the event log, and for other hooks as
    ``trainer_state.late_scores``. In which epoch that is depends on the machine. What is saved of a run
    must not, so ``trainer_state.eval_scores`` takes the scores of the last epoch only. Where the run is
    saved, policies wait for their scores in files (``RunSaver.owed_evaluations``): a run that was killed or
    stopped does missing evaluations when it is resumed.

    Every ``eval_config.replay_interval`` epochs, and once at the end, an episode of each simulation is
    recorded to `replay_dir`, logged as an event, and uploaded if there is a W&B run. What goes
    wrong with a replay warns, and does nothing else. `announce` receives lines for the user.
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
        evaluations: LateEvaluations | None = None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.eval_config = eval_config
        self.curriculum = curriculum or Curriculum()
        self.evaluator = evaluator or PolicyEvaluator(self.curriculum.task, eval_config, seed=seed)
        self._elsewhere = evaluations or _own_evaluations(eval_config, self.evaluator)
        self._promised = PromisedEvaluations()
        self._records = EvaluationRecords(self.evaluator, self._promised)
        self._announce = announce
        self._submitted_epoch: int | None = None
        self._has_warned = False
        self.replay_dir = None if replay_dir is None else Path(replay_dir).absolute()
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
    def eval_scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self._records.eval_scores

    @property
    def replays(self) -> dict[str, str]:
        """Simulation -> path of its newest replay."""
        return self._records.replays

    @property
    def latest_replay_uri(self) -> str | None:
        """Their W&B addresses, if they were uploaded."""
        return self._records.latest_replay_uri

    @property
    def failures_in_a_row(self) -> int:
        """Evaluations that failed since the last one that did not."""
        return self._records.failures_in_a_row

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
        state, services = trainer_state, services_of(checkpoint_hook, stats_client, None)
        state.owes_scores, self._has_warned = False, False
        state.late_scores = None if self._elsewhere is None else []
        if self._is_off:
            return
        store = None if services.saving is None else services.saving.owed_evaluations
        for moment, weights in self._promised.take_up(
            store, state.epoch, stats_client, replay_dir=self.replay_dir
        ):
            if self._elsewhere is not None:
                self._submitted_epoch = moment.epoch if moment.is_scored else self._submitted_epoch
                self._elsewhere.submit(moment, policy, weights)
            else:
                self._evaluate_owed(moment, state, policy, weights, services)
        self._report_awaited(services)

    def _evaluate_owed(
        self,
        moment: EvaluationRequest,
        state: TrainerState,
        policy: Policy,
        weights: Path,
        services: Services,
    ) -> None:
        """Do here what was promised when evaluation was elsewhere."""
        before = copy.deepcopy(policy)
        try:
            load_weights(weights, before)
            if moment.is_scored:
                self.evaluator.evaluate(before)
                self._records.take_scores(state, moment, self.evaluator.results, services)
                self._submitted_epoch = moment.epoch
        except Exception as error:  # noqa: BLE001  # raised again where it is not the first
            self._records.fail(moment.epoch, error)
            return
        if moment.replay_dir is not None:
            recorded = self._record_replays(before, moment.replay_dir, moment)
            self._records.report_replays(moment, recorded, services)

    def on_epoch_start(self, stats_client: Any) -> None:
        """What arrived was recorded by all hooks: it is not pending any more."""
        self._promised.keep_only(self._unfinished, stats_client)

    @property
    def _unfinished(self) -> set[int]:
        return set() if self._elsewhere is None else self._elsewhere.unfinished

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
        services = services_of(checkpoint_hook, stats_client, wandb_run)
        self._unrecorded_epoch = epoch
        is_scored = crossed(epoch - 1, epoch, config.evaluate_interval)
        is_recorded = crossed(epoch - 1, epoch, config.replay_interval)
        if self._elsewhere is not None:
            trainer_state.late_scores = []
            self._take_in(self._elsewhere, trainer_state, services)
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
        if self._elsewhere is not None:
            trainer_state.late_scores = []
            trainer_state.owes_scores = True  # until they arrive
        if _is_hurried(trainer_state):
            return
        epoch, services = trainer_state.epoch, services_of(checkpoint_hook, stats_client, wandb_run)
        is_new = trainer_state.eval_epoch != epoch
        is_scored = is_new and self._submitted_epoch != epoch
        is_recorded = self._unrecorded_epoch == epoch and self._replay_interval > 0
        if is_scored and self._unrecorded_epoch is None:
            # it was trained, perhaps scored, before a crash
            self._promised.look_up([epoch], stats_client)
        moment = self._moment(trainer_state, services, is_scored, is_recorded)
        self._evaluate(moment, trainer_state, policy, services)
        if self._elsewhere is not None:
            self._await(self._elsewhere, trainer_state, services)
            trainer_state.owes_scores = bool(self._elsewhere.unfinished)
        elif is_new and self._submitted_epoch == epoch:  # done when training began
            trainer_state.record_scores(self.eval_scores)

    def close(self, exc: BaseException | None = None, stats_client: Any = None) -> None:
        """End what plays elsewhere for this training; what it has not done stays pending."""
        if exc is None:  # else some hooks have perhaps not recorded what arrived last
            self._promised.keep_only(self._unfinished, stats_client)
        self._submitted_epoch = self._unrecorded_epoch = None
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _moment(
        self, state: TrainerState, services: Services, is_scored: bool, is_recorded: bool
    ) -> EvaluationRequest:
        uri = None if services.saving is None else services.saving.policy_uri_of(state.epoch)
        folder = str(self.replay_dir) if is_recorded and self.replay_dir is not None else None
        return EvaluationRequest(state.epoch, state.agent_step, uri, is_scored, folder)

    def _evaluate(
        self, moment: EvaluationRequest, state: TrainerState, policy: Policy, services: Services
    ) -> None:
        """Do what this request asks for, or have it done elsewhere."""
        if not moment.is_scored and moment.replay_dir is None:
            return
        if moment.replay_dir is not None:
            self._unrecorded_epoch = None
        try:
            if self._elsewhere is not None:
                self._submit(self._elsewhere, moment, policy, services)
                return
            scores = self.evaluator.evaluate(policy) if moment.is_scored else None
        except Exception as error:  # noqa: BLE001  # raised again where it is not the first
            self._records.fail(moment.epoch, error)
            return
        if scores is not None:
            results = getattr(self.evaluator, "results", None)
            state.record_scores(scores)
            self._records.record(moment, scores, results, services.stats_client)
        if moment.replay_dir is not None:
            recorded = self._record_replays(policy, moment.replay_dir, moment)
            self._records.report_replays(moment, recorded, services)

    def _submit(
        self,
        elsewhere: LateEvaluations,
        moment: EvaluationRequest,
        policy: Policy,
        services: Services,
    ) -> None:
        store = None if services.saving is None else services.saving.owed_evaluations
        try:
            weights = self._promised.add(store, moment, policy)
        except (OSError, MettaError) as error:
            weights = None  # it is played from a scratch file, and lost with this process
            warnings.warn(
                f"the policy of epoch {moment.epoch} could not be kept until it is scored: {error}; if "
                "this run is killed before that, its score is lost",
                MettaWarning,
                stacklevel=2,
            )
        elsewhere.submit(moment, policy, weights)
        self._submitted_epoch = moment.epoch if moment.is_scored else self._submitted_epoch
        self._report_awaited(services)
        if not self._has_warned and len(elsewhere.unfinished) > _MANY:
            self._has_warned = True
            warnings.warn(
                f"{len(elsewhere.unfinished)} policies wait for their scores, in files, and training "
                "continues; for fewer, raise evaluate_interval, lower eval_episodes, or let more workers "
                "play" + (f" ({elsewhere.trouble})" if elsewhere.trouble else ""),
                MettaWarning,
                stacklevel=2,
            )

    def _record_replays(self, policy: Policy, folder: str, moment: EvaluationRequest) -> Recorded:
        try:
            return self.evaluator.record(policy, folder, **moment.about())
        except Exception as error:  # noqa: BLE001  # a user's evaluator; reported in a warning
            return Recorded(failures={"all": f"{type(error).__name__}: {error}"})

    def _take_in(
        self,
        elsewhere: LateEvaluations,
        state: TrainerState,
        services: Services,
        *,
        is_over: bool = False,
    ) -> None:
        """Record what was found out elsewhere since the last time."""
        for outcome in elsewhere.collect():
            moment, results = outcome.moment, outcome.results
            if outcome.error is not None:
                self._records.fail(moment.epoch, outcome.error)
            elif results is None:
                self._records.report_replays(moment, outcome.recorded, services)
            else:
                self._records.take_scores(state, moment, results, services, is_over=is_over)
        self._report_awaited(services)

    def _await(self, elsewhere: LateEvaluations, state: TrainerState, services: Services) -> None:
        """Wait for what is still to come, as long as configured, and say for what."""
        assert self.eval_config is not None
        limit, begin = self.eval_config.end_wait_seconds, time.monotonic()
        said: list[str] = []
        self._take_in(elsewhere, state, services, is_over=True)
        while elsewhere.unfinished and not _is_hurried(state):
            waited = time.monotonic() - begin
            if waited >= limit:
                self._warn_of_owed(elsewhere, state, services)
                return
            if waited >= _QUIET_SECONDS:
                self._say_once(said, elsewhere, limit)
            elsewhere.wait(min(_WAIT_SECONDS, limit - waited))
            self._take_in(elsewhere, state, services, is_over=True)

    def _say_once(self, said: list[str], elsewhere: LateEvaluations, limit: float) -> None:
        """Say what is waited for, and every new reason why it does not come."""
        if not said:
            said.append("")
            names = _epochs_text(elsewhere.unfinished)
            self._announce(
                f"waiting for the scores of {names} (up to {limit:g} s; Ctrl-C stops waiting)"
            )
        if elsewhere.trouble and elsewhere.trouble not in said:
            said.append(elsewhere.trouble)
            self._announce(f"still waiting: {elsewhere.trouble}")

    def _warn_of_owed(
        self, elsewhere: LateEvaluations, state: TrainerState, services: Services
    ) -> None:
        assert self.eval_config is not None
        is_kept = services.saving is not None and services.saving.owed_evaluations is not None
        run = state.shared.get("run_name", "RUN")
        rest = (
            f"`metta resume {run}` collects them" if is_kept else "they are lost: nothing was saved"
        )
        reason = f" ({elsewhere.trouble})" if elsewhere.trouble else ""
        warnings.warn(
            f"the scores of {_epochs_text(elsewhere.unfinished)} did not arrive within "
            f"end_wait_seconds={self.eval_config.end_wait_seconds:g}{reason}; {rest}",
            MettaWarning,
            stacklevel=2,
        )

    def _report_awaited(self, services: Services) -> None:
        """Checkpoints of policies that are being scored may be the best, and must not go before that."""
        if services.saving is not None and self._elsewhere is not None:
            services.saving.await_scores(self._elsewhere.epochs)

    def get_eval_scores(self) -> EvalRewardSummary:
        """The last scores."""
        return self.eval_scores


def _own_evaluations(
    config: EvaluationConfig | None, evaluator: PolicyEvaluator
) -> LateEvaluations | None:
    """Those that need nothing but the evaluator."""
    if config is None or not config.is_elsewhere:
        return None
    if config.where != "process":
        raise ConfigError(
            f"evaluation.where={config.where!r} needs the folder of a run, in which policies wait for "
            'their scores: Trainer(config, run_dir="runs/first") or `metta train`; or use '
            "evaluation.where=process"
        )
    return BackgroundEvaluation(evaluator, config.eval_timeout_seconds)


def _epochs_text(epochs: set[int]) -> str:
    named = sorted(epochs)
    shown = ", ".join(map(str, named[:10])) + (", ..." if len(named) > 10 else "")
    return f"epoch{'s' if len(named) > 1 else ''} {shown}"


def _is_hurried(state: TrainerState) -> bool:
    """Whether a signal asked the run to stop soon."""
    return state.shared.get("stop_signal") is not None
