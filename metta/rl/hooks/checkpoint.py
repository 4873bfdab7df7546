"""`CheckpointHook`: when a run is saved, uploaded, and taken up again."""

import time
import warnings
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import torch

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, MettaError, MettaWarning
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.intervals import crossed
from metta.rl.resume.background_save import BackgroundSave
from metta.rl.resume.checkpointer import CheckpointManager, PendingCheckpoint
from metta.rl.resume.environment_state import EnvironmentState, WantedRestore
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.stateful import NamedState, StateRegistry
from metta.store.checkpoints.files import Checkpoint
from metta.store.checkpoints.late_scores import add_late_score
from metta.store.checkpoints.owed_evaluations import OwedEvaluations
from metta.store.policy_store import record_of_checkpoint
from metta.train.run_config import CheckpointConfig
from metta.train.train_config import TrainerConfig

__all__ = ["CheckpointHook"]

_DEFAULTS = CheckpointConfig()


class CheckpointHook(TrainerHook):
    """Saves a run every `checkpoint_interval` epochs and at its end; 0: never.

        manager = CheckpointManager(run_dir / "checkpoints")
        trainer.add_hook(CheckpointHook(manager, checkpoint_interval=50, resume=True))

    At the end of an epoch it takes a snapshot in memory, before other hooks hear of the epoch; when all
    have, `on_checkpoint` commits it, with the score if one of them evaluated. Writing happens in the
    background (unless `background` is False), the last checkpoint is waited for. Between checkpoints the
    run is kept in memory as often as `rescue_share` of the time allows, and written if it fails.

    Failed writes are tried again `max_retries` times; then training goes on with a warning, and stops
    after `max_failures` failed saves in a row, or if it was the last one. With `resume`, a run that has
    not begun takes up the newest checkpoint, or the one given, and `announce` gets a line about it;
    `env_restore` says how environments come back, see `EnvironmentState`. Without a manager the hook does
    nothing.
    """

    order: ClassVar[int] = 10
    role: ClassVar[str | None] = "checkpoint"

    def __init__(  # noqa: PLR0913  # all but the first three by name
        self,
        checkpoint_manager: CheckpointManager | None,
        checkpoint_interval: int,
        wandb_checkpoint_interval: int = 0,
        *,
        resume: bool | Checkpoint = False,
        announce: Callable[[str], object] | None = None,
        env_restore: WantedRestore = "auto",
        background: bool = True,
        rescue_share: float = _DEFAULTS.rescue_share,
        max_retries: int = 3,
        retry_seconds: float = 0.5,
        max_failures: int = 3,
    ) -> None:
        self.checkpoint_manager = checkpoint_manager
        self.checkpoint_interval = checkpoint_interval
        self.wandb_checkpoint_interval = wandb_checkpoint_interval
        self.resume, self.env_restore, self.background = resume, env_restore, background
        self.announce, self.rescue_share = announce, rescue_share
        self.max_retries, self.retry_seconds = max_retries, retry_seconds
        self.max_failures = max_failures
        self.failures_in_a_row = 0
        self.latest_wandb_uri: str | None = None
        self.latest_saved_epoch: int | None = None
        self._latest_record: PolicyRecord | None = None
        self._seen_epoch: int | None = None
        self._pending: PendingCheckpoint | None = None
        """Taken, and not handed over to be written yet."""
        self._writing: PendingCheckpoint | None = None
        self._rescue: PendingCheckpoint | None = None
        """The run as it was not long ago."""
        self._next_rescue = 0.0
        """Not before this time of the monotonic clock."""
        self._saves = BackgroundSave()
        self._upload_is_due = self._has_restored = False
        self._last_parts: tuple[StateRegistry, Policy] | None = None

    @property
    def latest_policy_uri(self) -> str | None:
        """Where the newest policy is, or where the snapshot that was just taken will be."""
        newest = self._pending or self._writing or self._latest_record
        return None if newest is None else newest.uri

    def policy_uri_of(self, epoch: int) -> str | None:
        """Where the policy of this epoch is or will be; None where it is not saved."""
        for found in (self._pending, self._writing, self._latest_record):
            if found is not None and found.epoch == epoch:
                return found.uri
        return None

    def on_training_start(
        self,
        trainer_state: TrainerState,
        registry: StateRegistry,
        policy: Policy,
        config: TrainerConfig | None = None,
    ) -> Policy | None:
        """Take up the newest checkpoint where that is wanted; a run under way stays as it is."""
        self._pending = self._rescue = self._last_parts = self._writing = None
        self._upload_is_due, self.failures_in_a_row, self._has_restored = False, 0, False
        if self.latest_saved_epoch != trainer_state.epoch:  # of another run, or of before a return
            self._latest_record = self.latest_saved_epoch = None
        if self._saves_anything or self.resume:
            self._prepare(registry)
        restored = self._restore(trainer_state, registry) if trainer_state.epoch == 0 else False
        self._seen_epoch = trainer_state.epoch
        if restored and self.announce is not None and self.checkpoint_manager is not None:
            total = None if config is None else config.total_timesteps
            self.announce(self.checkpoint_manager.describe_resume(trainer_state, total))
        return policy if restored else None

    @property
    def _saves_anything(self) -> bool:
        return self.checkpoint_manager is not None and self.checkpoint_interval > 0

    def _prepare(self, registry: StateRegistry | None) -> None:
        environments = None if registry is None else registry.get(EnvironmentState.state_name)
        if environments is not None and self.checkpoint_manager is not None:
            environments.prepare(self.env_restore)

    def _restore(self, trainer_state: TrainerState, registry: StateRegistry) -> bool:
        manager = self.checkpoint_manager
        if manager is None or not self.resume:
            return False
        given, self.resume = self.resume, True  # once restored, its memory is free
        checkpoint = given if isinstance(given, Checkpoint) else manager.load_trainer_state()
        if checkpoint is None:
            return False
        manager.restore(registry, checkpoint)
        self._note(trainer_state, record_of_checkpoint(checkpoint))
        self._has_restored = True
        return True

    def on_epoch_start(
        self,
        policy: Policy,
        trainer_state: TrainerState,
        registry: StateRegistry | None,
        wandb_run: Any,
        stats_client: Any,
    ) -> None:
        """Look after the save under way, and keep the run as it is before this epoch, if there is time."""
        self._look_after_save(trainer_state, wandb_run, stats_client)
        if not self._saves_anything or registry is None or self.rescue_share <= 0:
            return
        begin = time.monotonic()
        if begin < self._next_rescue or self.policy_uri_of(trainer_state.epoch) is not None:
            return
        assert self.checkpoint_manager is not None
        self._rescue = self.checkpoint_manager.snapshot(registry, policy, trainer_state)
        end = time.monotonic()
        self._next_rescue = end + (end - begin) * (1.0 / self.rescue_share - 1.0)

    def on_epoch_end(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        trainer_state: TrainerState,
        wandb_run: Any,
        registry: StateRegistry | None,
    ) -> None:
        """Take a snapshot where one is due."""
        now = trainer_state.epoch
        before = now - 1 if self._seen_epoch is None else self._seen_epoch
        self._seen_epoch = now
        is_due = crossed(before, now, self.checkpoint_interval)
        if wandb_run is not None and crossed(before, now, self.wandb_checkpoint_interval):
            self._upload_is_due = True
        if is_due and registry is not None:
            environments = registry.get(EnvironmentState.state_name)
            if environments is not None:
                environments.begin_epoch_to_save()
        if self._upload_is_due or is_due:
            self._snapshot(
                registry or StateRegistry([policy, NamedState("optimizer", optimizer)]),
                policy,
                trainer_state,
            )

    def on_checkpoint(
        self,
        checkpoint: PendingCheckpoint,
        trainer_state: TrainerState,
        wandb_run: Any,
        stats_client: Any = None,
    ) -> None:
        """Hand the snapshot over to be written; its policy is uploaded afterwards where that is due."""
        manager = self.checkpoint_manager
        if manager is None or checkpoint is not self._pending:
            return
        # what the other hooks noted about this epoch, statistics reported and scores, belongs to it
        checkpoint.refresh(trainer_state, trainer_state.stats, trainer_state.policies)
        scores = trainer_state.eval_scores
        if trainer_state.eval_epoch == checkpoint.epoch:  # older scores are those of another policy
            checkpoint.metadata |= {"score": scores.avg_category_score, **scores.to_dict()}
        self._look_after_save(trainer_state, wandb_run, stats_client, wait=True)
        self._saves.start(lambda: self._commit(manager, checkpoint))
        self._writing, self._pending = checkpoint, None
        is_last = self._last_parts is not None
        wait = is_last or not self.background
        self._look_after_save(trainer_state, wandb_run, stats_client, wait=wait, is_last=is_last)

    def wait_for_save(self) -> None:
        """Wait until what is being written in the background is on the disk."""
        self._saves.wait()

    def _look_after_save(
        self,
        trainer_state: TrainerState,
        wandb_run: Any,
        stats_client: Any,
        *,
        wait: bool = False,
        is_last: bool = False,
    ) -> None:
        """Tell everybody about the save under way if it is done, or when it is."""
        try:
            record = self._saves.take(wait=wait)
        except (OSError, CheckpointError) as error:
            self._failed(error, is_last=is_last)
            return
        except BaseException:
            self._writing = None
            raise
        if record is None:
            return
        self.failures_in_a_row, self._has_restored = 0, False
        self._note(trainer_state, record)
        if stats_client is not None:
            stats_client.record_policy(
                epoch=record.epoch, agent_step=record.agent_step, uri=record.uri
            )
        self._upload(trainer_state, wandb_run)

    def _failed(self, error: Exception, *, is_last: bool) -> None:
        """A save failed for good; the snapshot is kept in case that there is room for it later."""
        failed, self._writing = self._writing, None
        if self._rescue is None or (failed is not None and failed.epoch > self._rescue.epoch):
            self._rescue = failed
        self.failures_in_a_row += 1
        if is_last or self.failures_in_a_row >= self.max_failures:
            raise error
        warnings.warn(
            f"{error} ({self.failures_in_a_row} failed saves in a row, {self.max_failures} stop training); "
            "training goes on",
            MettaWarning,
            stacklevel=2,
        )

    def on_training_end(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        trainer_state: TrainerState,
        wandb_run: Any,
        registry: StateRegistry | None,
        stats_client: Any = None,
    ) -> None:
        """Take a last snapshot, unless this epoch is saved already."""
        self._look_after_save(trainer_state, wandb_run, stats_client, wait=True)
        uploads = wandb_run is not None and self.wandb_checkpoint_interval > 0
        self._upload_is_due = uploads
        if not uploads and self.checkpoint_interval == 0:
            return
        self._last_parts = (
            registry or StateRegistry([policy, NamedState("optimizer", optimizer)]),
            policy,
        )
        if self.latest_saved_epoch == trainer_state.epoch:
            self._upload(trainer_state, wandb_run)
        else:
            self._snapshot(*self._last_parts, trainer_state)

    def save_score(self, trainer_state: TrainerState) -> None:
        """The final policy was scored: where its epoch is saved already, save it once more, scored."""
        if self._last_parts is not None and self._pending is None:
            self._snapshot(*self._last_parts, trainer_state)

    def await_scores(self, epochs: Collection[int]) -> None:
        """Policies of these epochs, and no others, are being scored: they are kept until that is done."""
        if self.checkpoint_manager is not None:
            self.checkpoint_manager.awaited_epochs = frozenset(epochs)

    @property
    def owed_evaluations(self) -> OwedEvaluations | None:
        """Where policies wait for their scores, so that a resumed run can score them; None: nowhere."""
        manager = self.checkpoint_manager
        if not self._saves_anything or manager is None:
            return None
        return OwedEvaluations(manager.checkpoint_dir, manager.run_id)

    def save_late_score(self, epoch: int, scores: EvalRewardSummary) -> None:
        """The policy of an epoch was scored after it was saved: note it beside its checkpoint."""
        manager, score = self.checkpoint_manager, scores.avg_category_score
        if manager is None or score is None:
            return
        if self._writing is not None and self._writing.epoch == epoch:
            self.wait_for_save()
        try:
            add_late_score(manager.checkpoint_dir, epoch, score, scores.lower_bound)
        except CheckpointError as error:
            warnings.warn(f"{error}; training goes on", MettaWarning, stacklevel=2)

    def on_exception(
        self, trainer_state: TrainerState, wandb_run: Any = None, stats_client: Any = None
    ) -> None:
        """Write the newest whole epoch that is in memory and can be written, if it is not yet."""
        try:
            self._look_after_save(trainer_state, wandb_run, stats_client, wait=True)
        finally:
            manager, whole = self.checkpoint_manager, [self._pending, self._rescue]
            self._pending = self._rescue = None
            if manager is not None:
                self._save_first_of([one for one in whole if one is not None], trainer_state)

    def _save_first_of(
        self, candidates: list[PendingCheckpoint], trainer_state: TrainerState
    ) -> None:
        saved = -1 if self.latest_saved_epoch is None else self.latest_saved_epoch
        newer = [one for one in candidates if one.epoch > saved]
        newer.sort(key=lambda one: one.epoch, reverse=True)
        assert self.checkpoint_manager is not None
        for number, candidate in enumerate(newer, 1):
            try:
                self._note(trainer_state, self._commit(self.checkpoint_manager, candidate))
                return
            except MettaError:
                if number == len(newer):
                    raise

    def close(self, trainer_state: TrainerState | None = None) -> None:
        """Wait for the save under way; a hook that was taken out of a run leaves nothing half done."""
        state = trainer_state or TrainerState()
        self._look_after_save(state, None, None, wait=True, is_last=True)
        if self._has_restored and self._saves_anything and self.checkpoint_manager is not None:
            self.checkpoint_manager.prune()  # no save did since, and a crash may have come before it
        self._rescue, self._has_restored = None, False

    def _snapshot(
        self, registry: StateRegistry, policy: Policy, trainer_state: TrainerState
    ) -> None:
        if self.checkpoint_manager is None:
            return
        pending = self.checkpoint_manager.snapshot(registry, policy, trainer_state)
        self._pending = trainer_state.pending_checkpoint = pending

    def _commit(self, manager: CheckpointManager, pending: PendingCheckpoint) -> PolicyRecord:
        for attempt in range(self.max_retries):
            try:
                return manager.commit(pending)
            except (OSError, CheckpointError) as error:
                warnings.warn(
                    f"saving epoch {pending.epoch} failed and is tried again: {error}",
                    MettaWarning,
                    stacklevel=2,
                )
                time.sleep(self.retry_seconds * 2**attempt)
        return manager.commit(pending)

    def _note(self, trainer_state: TrainerState, record: PolicyRecord) -> None:
        """Tell everybody that a policy was saved."""
        self._writing = None
        self._latest_record, self.latest_saved_epoch = record, record.epoch
        trainer_state.policies.add(record)
        trainer_state.shared["latest_policy_uri"] = record.uri

    def _upload(self, trainer_state: TrainerState, wandb_run: Any) -> None:
        """A failed upload is worth a warning: the policy is safe here, and the next one follows."""
        manager, record = self.checkpoint_manager, self._latest_record
        if not self._upload_is_due or manager is None or record is None or wandb_run is None:
            return
        self._upload_is_due = False
        try:
            uri = manager.upload(record, wandb_run)
        except CheckpointError as error:
            warnings.warn(f"{error}; training goes on", MettaWarning, stacklevel=2)
            return
        self.latest_wandb_uri = trainer_state.shared["latest_wandb_uri"] = uri
