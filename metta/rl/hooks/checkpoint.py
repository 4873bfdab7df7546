"""`CheckpointHook`: when a run is saved and uploaded, and what was."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, MettaWarning
from metta.rl.hooks.base import TrainerHook
from metta.rl.resume.checkpointer import CheckpointManager
from metta.rl.resume.run_saver import RunSaver
from metta.rl.training_state import TrainerState, crossed
from metta.stateful import StateRegistry

__all__ = ["CheckpointHook"]


class CheckpointHook(TrainerHook):
    """Has a run saved every `checkpoint_interval` epochs and at its end; 0: never.

        trainer.add_hook(CheckpointHook(CheckpointManager(folder), checkpoint_interval=50))

    It decides when; the service `saving` saves. Every `wandb_checkpoint_interval` epochs, and at the
    end, the policy is saved, and uploaded if there is a W&B run. Saved policies are reported to the stats
    client and noted in ``trainer_state.policies``. Without a manager the hook does nothing.
    """

    order: ClassVar[int] = 10
    role: ClassVar[str | None] = "checkpoint"

    def __init__(
        self,
        checkpoint_manager: CheckpointManager | None,
        checkpoint_interval: int,
        wandb_checkpoint_interval: int = 0,
        *,
        saving: RunSaver | None = None,
    ) -> None:
        self.checkpoint_manager = checkpoint_manager
        self.checkpoint_interval = checkpoint_interval
        self.wandb_checkpoint_interval = wandb_checkpoint_interval
        self.latest_wandb_uri: str | None = None
        if saving is None and checkpoint_manager is not None:
            saving = RunSaver(checkpoint_manager, checkpoint_interval)
        self.saving = saving
        self._seen_epoch: int | None = None
        self._upload_is_due = False

    @property
    def latest_saved_epoch(self) -> int | None:
        """The epoch of the newest checkpoint of this run; None before the first."""
        return None if self.saving is None else self.saving.latest_saved_epoch

    def wait_for_save(self) -> None:
        """Wait until what is being written in the background is on the disk."""
        if self.saving is not None:
            self.saving.wait()

    def on_training_start(
        self, trainer_state: TrainerState, registry: StateRegistry | None = None
    ) -> None:
        """Count intervals from here."""
        self._seen_epoch, self._upload_is_due = trainer_state.epoch, False
        if self.saving is not None:
            self.saving.begin(registry, trainer_state)

    def on_epoch_start(
        self, policy: Policy, trainer_state: TrainerState, registry: StateRegistry | None
    ) -> None:
        """Report what was saved meanwhile; the run may be copied in memory now."""
        if self.saving is not None:
            self.saving.finish()
            if registry is not None:
                self.saving.keep(registry, policy, trainer_state)

    def on_epoch_end(
        self, trainer_state: TrainerState, wandb_run: Any = None, stats_client: Any = None
    ) -> None:
        """Ask for a checkpoint where one is due."""
        now = trainer_state.epoch
        before = now - 1 if self._seen_epoch is None else self._seen_epoch
        self._seen_epoch = now
        is_due = crossed(before, now, self.checkpoint_interval)
        if wandb_run is not None and crossed(before, now, self.wandb_checkpoint_interval):
            self._upload_is_due = is_due = True
        if is_due and self.saving is not None:
            self.saving.request(trainer_state, self._report(trainer_state, wandb_run, stats_client))

    def on_training_end(
        self, trainer_state: TrainerState, wandb_run: Any = None, stats_client: Any = None
    ) -> None:
        """Ask for a last checkpoint, and upload what is saved already."""
        if self.saving is None:
            return
        self.saving.finish(wait=True)
        self._upload_is_due = wandb_run is not None and self.wandb_checkpoint_interval > 0
        if not self._upload_is_due and self.checkpoint_interval == 0:
            return
        if self.saving.latest_saved_epoch == trainer_state.epoch:
            self._upload(trainer_state, wandb_run)
        report = self._report(trainer_state, wandb_run, stats_client)
        self.saving.request(trainer_state, report, is_last=True)

    def on_exception(
        self, policy: Policy, trainer_state: TrainerState, registry: StateRegistry | None
    ) -> None:
        """Have the newest whole epoch saved that is in memory."""
        if self.saving is not None:
            self.saving.rescue(registry, policy, trainer_state)

    def close(self) -> None:
        """Wait for the save under way."""
        if self.saving is not None:
            self.saving.close()

    def _report(
        self, state: TrainerState, wandb_run: Any, stats_client: Any
    ) -> Callable[[PolicyRecord], None]:
        """What happens when the checkpoint of this event is on the disk."""

        def report(record: PolicyRecord) -> None:
            state.note_policy(record)
            if stats_client is not None:
                stats_client.record_policy(
                    epoch=record.epoch, agent_step=record.agent_step, uri=record.uri
                )
            self._upload(state, wandb_run)

        return report

    def _upload(self, state: TrainerState, wandb_run: Any) -> None:
        """A failed upload is worth a warning: the policy is safe here, and the next one follows."""
        manager = self.checkpoint_manager
        record = None if self.saving is None else self.saving.latest_record
        if not self._upload_is_due or manager is None or record is None or wandb_run is None:
            return
        self._upload_is_due = False
        try:
            uri = manager.upload(record, wandb_run)
        except CheckpointError as error:
            warnings.warn(f"{error}; training continues", MettaWarning, stacklevel=2)
            return
        self.latest_wandb_uri = state.shared["latest_wandb_uri"] = uri
