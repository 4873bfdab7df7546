"""`CheckpointHook`: when a run is saved, uploaded, and taken up again."""

import time
import warnings
from typing import Any, ClassVar

import torch

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, MettaWarning
from metta.rl.checkpointer import CheckpointManager, PendingCheckpoint
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.intervals import crossed
from metta.rl.training_state import TrainerState
from metta.stateful import NamedState, StateRegistry
from metta.store.policy_store import record_of_checkpoint

__all__ = ["CheckpointHook"]


class CheckpointHook(TrainerHook):
    """Saves a run every `checkpoint_interval` epochs and at its end; 0: never.

        manager = CheckpointManager(run_dir / "checkpoints")
        trainer.add_hook(CheckpointHook(manager, checkpoint_interval=50, resume=True))

    At the end of an epoch it takes a snapshot in memory, before other hooks hear of the epoch; when all
    have, `on_checkpoint` commits it, with the score if one of them evaluated. Failed writes are tried
    again `max_retries` times, then training stops. With `resume`, a run that has not begun takes up the
    newest checkpoint. Without a manager the hook does nothing.
    """

    order: ClassVar[int] = 10
    role: ClassVar[str | None] = "checkpoint"

    def __init__(
        self,
        checkpoint_manager: CheckpointManager | None,
        checkpoint_interval: int,
        wandb_checkpoint_interval: int = 0,
        *,
        resume: bool = False,
        max_retries: int = 3,
        retry_seconds: float = 0.5,
    ) -> None:
        self.checkpoint_manager = checkpoint_manager
        self.checkpoint_interval = checkpoint_interval
        self.wandb_checkpoint_interval = wandb_checkpoint_interval
        self.resume = resume
        self.max_retries, self.retry_seconds = max_retries, retry_seconds
        self.latest_wandb_uri: str | None = None
        self.latest_saved_epoch: int | None = None
        self._latest_record: PolicyRecord | None = None
        self._seen_epoch: int | None = None
        self._pending: PendingCheckpoint | None = None
        self._upload_is_due = False
        self._last_parts: tuple[StateRegistry, Policy] | None = None

    @property
    def latest_policy_uri(self) -> str | None:
        """Where the newest policy is, or where the snapshot that was just taken will be."""
        if self._pending is not None:
            return self._pending.uri
        return None if self._latest_record is None else self._latest_record.uri

    def policy_uri_of(self, epoch: int) -> str | None:
        """Where the policy of this epoch is or will be; None where it is not saved."""
        if self._pending is not None and self._pending.epoch == epoch:
            return self._pending.uri
        record = self._latest_record
        return record.uri if record is not None and record.epoch == epoch else None

    def on_training_start(
        self, trainer_state: TrainerState, registry: StateRegistry, policy: Policy
    ) -> Policy | None:
        """Take up the newest checkpoint where that is wanted; a run under way stays as it is."""
        self._pending, self._upload_is_due, self._last_parts = None, False, None
        restored = self._restore(trainer_state, registry) if trainer_state.epoch == 0 else False
        self._seen_epoch = trainer_state.epoch
        return policy if restored else None

    def _restore(self, trainer_state: TrainerState, registry: StateRegistry) -> bool:
        manager = self.checkpoint_manager
        checkpoint = manager.load_trainer_state() if manager and self.resume else None
        if manager is None or checkpoint is None:
            return False
        manager.restore(registry, checkpoint)
        self._note(trainer_state, record_of_checkpoint(checkpoint))
        return True

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
        if wandb_run is not None and crossed(before, now, self.wandb_checkpoint_interval):
            self._upload_is_due = True
        if self._upload_is_due or crossed(before, now, self.checkpoint_interval):
            self._snapshot(registry or _registry(policy, optimizer), policy, trainer_state)

    def on_checkpoint(
        self,
        checkpoint: PendingCheckpoint,
        trainer_state: TrainerState,
        wandb_run: Any,
        stats_client: Any = None,
    ) -> None:
        """Commit the snapshot, and upload its policy where that is due."""
        if self.checkpoint_manager is None or checkpoint is not self._pending:
            return
        # what the other hooks noted about this epoch, statistics reported and scores, belongs to it
        checkpoint.refresh(trainer_state, trainer_state.stats, trainer_state.policies)
        scores = trainer_state.eval_scores
        if trainer_state.eval_epoch == checkpoint.epoch:  # older scores are those of another policy
            checkpoint.metadata |= {"score": scores.avg_category_score, **scores.to_dict()}
        record = self._commit(self.checkpoint_manager, checkpoint)
        self._note(trainer_state, record)
        if stats_client is not None:
            stats_client.record_policy(
                epoch=record.epoch, agent_step=record.agent_step, uri=record.uri
            )
        self._upload(trainer_state, wandb_run)

    def on_training_end(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        trainer_state: TrainerState,
        wandb_run: Any,
        registry: StateRegistry | None,
    ) -> None:
        """Take a last snapshot, unless this epoch is saved already."""
        uploads = wandb_run is not None and self.wandb_checkpoint_interval > 0
        self._upload_is_due = uploads
        if not uploads and self.checkpoint_interval == 0:
            return
        self._last_parts = registry or _registry(policy, optimizer), policy
        if self.latest_saved_epoch == trainer_state.epoch:
            self._upload(trainer_state, wandb_run)
        else:
            self._snapshot(*self._last_parts, trainer_state)

    def save_score(self, trainer_state: TrainerState) -> None:
        """The final policy was scored: where its epoch is saved already, save it once more, scored."""
        if self._last_parts is not None and self._pending is None:
            self._snapshot(*self._last_parts, trainer_state)

    def on_exception(self, trainer_state: TrainerState) -> None:
        """Write the snapshot of the last whole epoch if it was not written yet; nothing newer is whole."""
        pending, self._pending = self._pending, None
        if pending is not None and self.checkpoint_manager is not None:
            self._note(trainer_state, self.checkpoint_manager.commit(pending))

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
        self._pending = None
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


def _registry(policy: Policy, optimizer: torch.optim.Optimizer) -> StateRegistry:
    """The least that a run consists of, for those who trigger events by hand."""
    registry = StateRegistry()
    registry.add(policy)
    registry.add(NamedState("optimizer", optimizer))
    return registry
