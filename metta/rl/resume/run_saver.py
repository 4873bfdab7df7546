"""`RunSaver`: the service of a run that saves it, restores it, and keeps copies in case it fails."""

import contextlib
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, MettaError, MettaWarning, NonFiniteError
from metta.rl.resume.background_save import BackgroundSave
from metta.rl.resume.checkpointer import PendingCheckpoint, TrainingCheckpointer
from metta.rl.resume.environment_state import EnvironmentState
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.stateful import StateRegistry
from metta.store.checkpoints.files import Checkpoint, free_path
from metta.store.checkpoints.late_scores import add_late_score
from metta.store.checkpoints.owed_evaluations import OwedEvaluations
from metta.store.policy_store import record_of_checkpoint
from metta.train.run_config import CheckpointConfig

__all__ = ["RunSaver", "SaveRequest", "SavingHook"]

_DEFAULTS = CheckpointConfig()

Report = Callable[[PolicyRecord], None]
"""Called in the thread that trains, when a checkpoint is on the disk."""


class _Expected(NamedTuple):
    """A checkpoint that was asked for, and is not taken yet."""

    epoch: int
    uri: str


class RunSaver:
    """Saves a run when it is asked to, and restores it.

        saver = RunSaver(CheckpointManager(run_dir / "checkpoints"), interval=50)
        saver.restore(parts.registry)                    # when the parts of a run are built
        saver.request(trainer_state, report)             # at the end of an epoch

    The loop takes the snapshot of a request when all hooks have received the epoch, so that their scores
    are in it. Writing happens in the background (unless `background` is False); the loop waits for the last
    checkpoint. Between checkpoints `keep` copies the run in memory as often as `rescue_share` of the time
    allows, and `rescue` writes the newest copy if training fails.

    Failed writes are tried again `max_retries` times; then training continues with a warning, and stops
    after `max_failures` failed saves in a row, or if it was the last one. `interval` is that of the
    checkpoints; with 0 nothing is kept between the requests.
    """

    def __init__(
        self,
        checkpointer: TrainingCheckpointer,
        interval: int,
        *,
        background: bool = True,
        rescue_share: float = _DEFAULTS.rescue_share,
        max_retries: int = 3,
        retry_seconds: float = 0.5,
        max_failures: int = 3,
    ) -> None:
        self.checkpointer, self.interval = checkpointer, interval
        self.background, self.rescue_share = background, rescue_share
        self.max_retries, self.retry_seconds = max_retries, retry_seconds
        self.max_failures = max_failures
        self.failures_in_a_row = 0
        self.latest_record: PolicyRecord | None = None
        """The policy of the newest checkpoint of this run."""
        self._latest_is_scored = self._has_restored = False
        self._expected: _Expected | None = None
        self._pending: PendingCheckpoint | None = None
        """Taken, but not being written yet."""
        self._writing: tuple[PendingCheckpoint, Report] | None = None
        self._rescue: PendingCheckpoint | None = None
        """A recent copy of the run."""
        self._next_rescue = 0.0
        """Not before this time of the monotonic clock."""
        self._saves = BackgroundSave()

    @classmethod
    def from_config(
        cls, checkpointer: TrainingCheckpointer, config: CheckpointConfig
    ) -> "RunSaver":
        """A service with the configured interval and share of the time."""
        return cls(checkpointer, config.checkpoint_interval, rescue_share=config.rescue_share)

    @property
    def latest_saved_epoch(self) -> int | None:
        """The epoch of the newest checkpoint of this run; None before the first."""
        return None if self.latest_record is None else self.latest_record.epoch

    def restore(self, registry: StateRegistry, checkpoint: Checkpoint | None = None) -> bool:
        """Restore a run that has not begun here: from this checkpoint, or the newest; False: none.

        `ConfigError`, `InexactResumeError` or `StateError` where the checkpoint is one of another run.
        """
        checkpoint = checkpoint or self.checkpointer.load_trainer_state()
        if checkpoint is None:
            return False
        _prepare_environments(registry)
        self.checkpointer.restore(registry, checkpoint)
        record = record_of_checkpoint(checkpoint)
        state = registry.get(TrainerState.state_name)
        self._note(record, is_scored=state.eval_epoch == record.epoch)
        state.note_policy(record)
        self._has_restored = True
        return True

    def begin(self, registry: StateRegistry | None, state: TrainerState) -> None:
        """Training begins: forget the copies of a run before it."""
        self._expected = self._pending = self._rescue = self._writing = None
        self.failures_in_a_row = 0
        if self.latest_saved_epoch != state.epoch:  # of another run, or of before a return
            self.latest_record, self._latest_is_scored = None, False
        if self.interval > 0 and registry is not None:
            _prepare_environments(registry)

    def keep(self, registry: StateRegistry, policy: Policy, state: TrainerState) -> None:
        """Copy the run before an epoch begins, if there is time for it."""
        self._expected = None
        begin = time.monotonic()
        is_too_early = self.interval <= 0 or self.rescue_share <= 0 or begin < self._next_rescue
        if is_too_early or registry.elsewhere or self.policy_uri_of(state.epoch) is not None:
            return
        self._rescue = self.checkpointer.snapshot(registry, policy, state)
        end = time.monotonic()
        self._next_rescue = end + (end - begin) * (1.0 / self.rescue_share - 1.0)

    def request(self, state: TrainerState, report: Report, *, is_last: bool = False) -> None:
        """Ask the loop for a checkpoint of this epoch, when all hooks have received it.

        The last one of a training is skipped if the epoch is saved already, with its score.
        """
        uri = free_path(self.checkpointer.checkpoint_dir, state.epoch).as_uri()
        if self.latest_saved_epoch != state.epoch:
            self._expected = _Expected(state.epoch, uri)
        state.checkpoint_requests.append(SaveRequest(self, report, is_last))

    def take(
        self, registry: StateRegistry, policy: Policy, state: TrainerState
    ) -> PendingCheckpoint:
        """A snapshot of the run with the scores of this epoch; `write` writes it."""
        self._expected = None
        pending = self.checkpointer.snapshot(registry, policy, state)
        scores = state.eval_scores
        if state.eval_epoch == pending.epoch:  # older scores are those of another policy
            pending.metadata |= {"score": scores.avg_category_score, **scores.to_dict()}
        self._pending = pending
        return pending

    def is_saved(self, state: TrainerState) -> bool:
        """Whether the present epoch is on the disk, with its score if there is one."""
        has_score = state.eval_epoch == state.epoch
        return self.latest_saved_epoch == state.epoch and (self._latest_is_scored or not has_score)

    def write(self, pending: PendingCheckpoint, report: Report, *, is_last: bool = False) -> None:
        """Write a snapshot, in the background unless it is the last; `report` is called after it."""
        self.finish(wait=True)
        self._saves.start(lambda: self._commit(pending))
        self._writing, self._pending = (pending, report), None
        self.finish(wait=is_last or not self.background, is_last=is_last)

    def wait(self) -> None:
        """Wait until what is being written in the background is on the disk."""
        self._saves.wait()

    def finish(self, *, wait: bool = False, is_last: bool = False) -> None:
        """Report the save under way if it is done, or when it is."""
        try:
            record = self._saves.take(wait=wait)
        except (OSError, CheckpointError) as error:
            self._failed(error, is_last=is_last)
            return
        except BaseException:
            self._writing = None
            raise
        if record is None or self._writing is None:
            return
        pending, report = self._writing
        self.failures_in_a_row, self._has_restored = 0, False
        self._note(record, is_scored="score" in pending.metadata)
        report(record)

    def _failed(self, error: Exception, *, is_last: bool) -> None:
        """A save failed for good; the snapshot is kept in case there is room for it later."""
        failed = None if self._writing is None else self._writing[0]
        self._writing = None
        if self._rescue is None or (failed is not None and failed.epoch > self._rescue.epoch):
            self._rescue = failed
        self.failures_in_a_row += 1
        if is_last or self.failures_in_a_row >= self.max_failures:
            raise error
        warnings.warn(
            f"{error} ({self.failures_in_a_row} failed saves in a row, {self.max_failures} stop training); "
            "training continues",
            MettaWarning,
            stacklevel=2,
        )

    def rescue(self, registry: StateRegistry | None, policy: Policy, state: TrainerState) -> None:
        """Training failed: write the newest whole epoch that can be written, if it is not yet."""
        try:
            self.finish(wait=True)
        finally:
            whole = [one for one in (self._pending, self._rescue) if one is not None]
            # what other ranks hold is known at checkpoints only
            if self._expected is not None and registry is not None and not registry.elsewhere:
                # a hook failed at the end of this epoch, which is whole
                with contextlib.suppress(NonFiniteError):
                    whole.append(self.checkpointer.snapshot(registry, policy, state))
            self._expected = self._pending = self._rescue = None
            self._save_first_of(whole, state)

    def _save_first_of(self, candidates: list[PendingCheckpoint], state: TrainerState) -> None:
        saved = -1 if self.latest_saved_epoch is None else self.latest_saved_epoch
        newer = [one for one in candidates if one.epoch > saved]
        newer.sort(key=lambda one: one.epoch, reverse=True)
        for number, candidate in enumerate(newer, 1):
            try:
                record = self._commit(candidate)
            except MettaError:
                if number == len(newer):
                    raise
            else:
                self._note(record, is_scored="score" in candidate.metadata)
                state.note_policy(record)
                return

    def close(self) -> None:
        """Wait for the running save; nothing stays half done."""
        self.finish(wait=True, is_last=True)
        if self._has_restored and self.interval > 0:
            self.checkpointer.prune()  # no save did since, and a crash may have come before it
        self._rescue, self._has_restored = None, False

    def _commit(self, pending: PendingCheckpoint) -> PolicyRecord:
        for attempt in range(self.max_retries):
            try:
                return self.checkpointer.commit(pending)
            except (OSError, CheckpointError) as error:
                warnings.warn(
                    f"saving epoch {pending.epoch} failed and is tried again: {error}",
                    MettaWarning,
                    stacklevel=2,
                )
                time.sleep(self.retry_seconds * 2**attempt)
        return self.checkpointer.commit(pending)

    def _note(self, record: PolicyRecord, *, is_scored: bool) -> None:
        self._writing = None
        self.latest_record, self._latest_is_scored = record, is_scored

    # what evaluation asks for and reports

    def policy_uri_of(self, epoch: int) -> str | None:
        """Where the policy of this epoch is or will be; None where it is not saved."""
        writing = None if self._writing is None else self._writing[0]
        for found in (self._expected, self._pending, writing, self.latest_record):
            if found is not None and found.epoch == epoch:
                return found.uri
        return None

    def await_scores(self, epochs: Collection[int]) -> None:
        """Policies of these epochs, and no others, are being scored: they are kept until that is done."""
        self.checkpointer.awaited_epochs = frozenset(epochs)

    @property
    def owed_evaluations(self) -> OwedEvaluations | None:
        """Where policies wait for their scores, so that a resumed run can score them; None: nowhere."""
        if self.interval <= 0:
            return None
        return OwedEvaluations(self.checkpointer.checkpoint_dir, self.checkpointer.run_id)

    def save_late_score(self, epoch: int, scores: EvalRewardSummary) -> None:
        """The policy of an epoch was scored after it was saved: note it beside its checkpoint."""
        score = scores.avg_category_score
        if score is None:
            return
        if self._writing is not None and self._writing[0].epoch == epoch:
            self.wait()
        try:
            add_late_score(self.checkpointer.checkpoint_dir, epoch, score, scores.lower_bound)
        except CheckpointError as error:
            warnings.warn(f"{error}; training continues", MettaWarning, stacklevel=2)


@dataclass(frozen=True)
class SaveRequest:
    """What the loop does when all hooks have received an epoch that is to be saved."""

    saver: RunSaver
    report: Report
    is_last: bool = False

    def take(
        self, registry: StateRegistry, policy: Policy, state: TrainerState
    ) -> PendingCheckpoint | None:
        """The snapshot; None for a last one that is on the disk already."""
        if self.is_last and self.saver.is_saved(state):
            return None
        return self.saver.take(registry, policy, state)

    def write(self, pending: PendingCheckpoint) -> None:
        """Write what `take` gave."""
        self.saver.write(pending, self.report, is_last=self.is_last)


class SavingHook(Protocol):
    """The hook whose role is `checkpoint`, as other hooks see it."""

    @property
    def saving(self) -> RunSaver | None:
        """The service that saves the run; None: nothing is saved."""
        ...


def _prepare_environments(registry: StateRegistry) -> None:
    for name in registry.names():
        if isinstance(part := registry.get(name), EnvironmentState):
            part.prepare()
