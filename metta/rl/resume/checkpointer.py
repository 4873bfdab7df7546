"""`TrainingCheckpointer`: a run's whole state, saved at one moment and put back."""

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import (
    CheckpointError,
    ConfigError,
    MettaWarning,
    MissingExtraError,
    StateError,
)
from metta.loggers.events.log import LogMark
from metta.rl.resume.conditions import RunConditions
from metta.rl.training_state import TrainerState
from metta.state_tree import copy_state
from metta.stateful import StateRegistry
from metta.store.checkpoints.files import (
    POLICY_FILE,
    Checkpoint,
    checkpoint_folders,
    free_path,
    new_run_id,
    read_entry,
    read_newest_checkpoint,
    write_checkpoint,
)
from metta.store.checkpoints.finite_state import require_finite
from metta.store.checkpoints.late_scores import drop_late_scores
from metta.store.checkpoints.retention import prune_checkpoints
from metta.store.policies.file import FrozenPolicy, freeze_policy
from metta.store.policy_store import PolicyStore, path_of, record_of_checkpoint
from metta.store.run_directory import RunDirectory
from metta.train.advice import FOR_COMPONENTS, Advice
from metta.train.train_config import CheckpointConfig

__all__ = ["CheckpointManager", "PendingCheckpoint", "TrainingCheckpointer"]

_DEFAULTS = CheckpointConfig()
_OPTIMIZER = "optimizer"
_METRICS = "metrics"


@dataclass
class PendingCheckpoint:
    """A copy of a run at one moment, not yet on disk."""

    epoch: int
    agent_step: int
    policy: FrozenPolicy = field(repr=False)
    snapshot: dict[str, dict[str, Any]] = field(repr=False)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Plain data that is saved beside the state, e.g. the score; may be added to before `commit`."""
    uri: str = ""
    """Where the policy will be."""


class TrainingCheckpointer:
    """Saves a run and finds it again.

        checkpointer = TrainingCheckpointer(run_dir / "checkpoints")
        policy_record = checkpointer.save_policy(policy, epoch, metadata)
        checkpointer.save_trainer_state(agent_step, epoch, optimizer.state_dict(), run_dir)

        checkpoint = checkpointer.load_trainer_state(run_dir)
        policy_record = checkpointer.load_policy(checkpoint, env)

    A checkpoint is one folder with policy and state, and appears as a whole or not at all. `save_policy`
    writes the policy to the store at once, where it stays, and remembers it; `save_trainer_state` then
    commits one checkpoint with that policy, the optimizer and, where there is a `registry`, all of its
    components. Whole runs use `snapshot`, `commit` and `restore`.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        policy_store: PolicyStore | None = None,
        wandb_run: Any = None,
        *,
        registry: StateRegistry | None = None,
        keep_last: int = _DEFAULTS.keep_last,
        keep_every: int = _DEFAULTS.keep_every,
        run_id: str | None = None,
    ) -> None:
        if keep_last < 1 or keep_every < 0:
            raise ConfigError(
                f"keep_last={keep_last} and keep_every={keep_every}; keep at least the last one, and "
                "every 0 (none) or more epochs"
            )
        self.checkpoint_dir = Path(checkpoint_dir).absolute()
        self.policy_store = policy_store or PolicyStore(self.checkpoint_dir)
        self.awaited_epochs: frozenset[int] = frozenset()
        """Epochs whose scores are still to come: their checkpoints stay until then."""
        self.wandb_run = wandb_run
        self.registry = registry
        self.keep_last, self.keep_every = keep_last, keep_every
        self.run_id, self._id_is_given = run_id or new_run_id(), run_id is not None
        """Written to its checkpoints, and taken from one that is restored: retention removes only
        those that have it."""
        self.latest_wandb_uri: str | None = None
        self.before_commit: Callable[[], LogMark] | None = None
        """Called before each `commit`: what a run logged up to then must be as safe as its checkpoint."""
        self.advice: Advice = FOR_COMPONENTS
        """Advice that `restore` adds to its error when the checkpoint does not fit."""
        self._lock = threading.Lock()
        """One save at a time: each removes what looks unfinished."""
        self._staged: tuple[int, FrozenPolicy, dict[str, Any]] | None = None
        self._architecture: tuple[Policy, str] | None = None
        """The policy of the last snapshot and its architecture, which training does not change."""

    @classmethod
    def from_config(
        cls,
        checkpoint_dir: str | os.PathLike[str],
        config: CheckpointConfig,
        policy_store: PolicyStore | None = None,
        wandb_run: Any = None,
        *,
        run_id: str | None = None,
    ) -> "TrainingCheckpointer":
        """A checkpointer that keeps what the configuration asks for."""
        return cls(
            checkpoint_dir,
            policy_store,
            wandb_run,
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            run_id=run_id,
        )

    def snapshot(
        self,
        registry: StateRegistry,
        policy: Policy,
        state: TrainerState,
        metadata: Mapping[str, Any] | None = None,
    ) -> PendingCheckpoint:
        """Everything registered and the policy as they are now; nothing is written.

        NaN or infinity in policy, optimizer or losses is refused: `NonFiniteError`.
        """
        if self._architecture is None or self._architecture[0] is not policy:
            self._architecture = policy, policy.architecture_hash()
        frozen = freeze_policy(policy, self._architecture[1])
        copied = require_finite(_copied(registry, policy, frozen), state.epoch)
        return PendingCheckpoint(
            state.epoch,
            state.agent_step,
            frozen,
            copied,
            self._described(policy, {_METRICS: _numbers_in(state.metrics), **(metadata or {})}),
            free_path(self.checkpoint_dir, state.epoch).as_uri(),
        )

    def commit(self, pending: PendingCheckpoint) -> PolicyRecord:
        """Write a snapshot as one checkpoint, then remove those that are not kept; returns its policy."""
        log_mark = None if self.before_commit is None else self.before_commit()
        return self._write(self.checkpoint_dir, pending, log_mark)

    def restore(self, registry: StateRegistry, checkpoint: Checkpoint) -> None:
        """Put every component back, and the metrics of its epoch.

        `ConfigError` names settings that differ; `StateError` where the checkpoint belongs to another kind
        of run.
        """
        conditions = registry.get(RunConditions.state_name)
        saved = checkpoint.snapshot.get(RunConditions.state_name)
        try:
            if conditions is not None and saved is not None:
                conditions.compare(saved["state"], str(checkpoint.path), self.advice)
            registry.restore(checkpoint.snapshot)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the checkpoint {str(checkpoint.path)!r} does not fit this run: {error}. "
                f"{self.advice.settings}"
            ) from error
        self.run_id = checkpoint.run_id or self.run_id
        state = registry.get(TrainerState.state_name)
        if isinstance(state, TrainerState):
            state.metrics = _numbers_in(checkpoint.metadata.get(_METRICS))

    def describe_resume(self, state: TrainerState, total: int | None) -> str:
        """A line about a run that was restored here; `total` is how many steps are wanted."""
        status, way = "resumes", "To begin anew,"
        if total is not None and state.agent_step >= total:
            status, way = "is complete", "To train further, raise total_timesteps, or"
        return (
            f"{str(self.checkpoint_dir)!r} holds this run already: it {status} at epoch {state.epoch} "
            f"({state.agent_step:,} steps), and its weights replace those passed in. {way} use another "
            "folder"
        )

    def save_policy(
        self, policy: Policy, epoch: int, metadata: Mapping[str, Any] | None = None
    ) -> PolicyRecord:
        """Write a policy to the policy store; `save_trainer_state` of the same epoch saves it too."""
        frozen, about = freeze_policy(policy), self._described(policy, metadata)
        name, agent_step = str(about.get("name", "policy")), int(about.get("agent_step", 0))
        record = self.policy_store.save(frozen, name, epoch, agent_step, about)
        self._staged = epoch, frozen, about
        return record

    def save_trainer_state(
        self,
        agent_step: int,
        epoch: int,
        optimizer_state_dict: Mapping[str, Any],
        run_dir: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Commit one checkpoint of the policy saved last and of the optimizer; returns its folder.

        It goes to the run's folder of checkpoints, or without `run_dir` to this checkpointer's.
        """
        if self._staged is None or self._staged[0] != epoch:
            found = (
                "no policy was saved" if self._staged is None else f"epoch {self._staged[0]} was"
            )
            raise CheckpointError(
                f"save_trainer_state(epoch={epoch}) needs the policy of that epoch, but {found}; call "
                f"save_policy(policy, {epoch}, metadata) first: a checkpoint holds both"
            )
        _, frozen, about = self._staged
        snapshot = {} if self.registry is None else copy_state(self.registry.snapshot())
        snapshot["policy"] = {"version": Policy.state_version, "state": frozen.tensors}
        version = snapshot.get(_OPTIMIZER, {}).get("version", 1)
        snapshot[_OPTIMIZER] = {"version": version, "state": copy_state(optimizer_state_dict)}
        pending = PendingCheckpoint(epoch, agent_step, frozen, snapshot, about)
        record = self._write(self._folder(run_dir), pending)
        return path_of(record.uri)

    def has_checkpoints(self) -> bool:
        """Whether there is anything to continue from, readable or not."""
        return bool(checkpoint_folders(self.checkpoint_dir))

    def load_trainer_state(
        self, run_dir: str | os.PathLike[str] | None = None, *, run_id: str | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint of a run (default: of this checkpointer), or None before the first.

        Damaged ones, and where a `run_id` is given those of other runs, are passed over with a warning;
        `CheckpointError` if none remains.
        """
        checkpoint = read_newest_checkpoint(self._folder(run_dir), run_id=run_id)
        if checkpoint is not None and run_dir is None and not self._id_is_given:
            self.run_id = checkpoint.run_id or self.run_id  # what is saved next is of the same run
        return checkpoint

    def load_policy(
        self, checkpoint: Checkpoint, env: Any, policy: nn.Module | None = None
    ) -> PolicyRecord:
        """A checkpoint's policy, ready to act; of `env` only the spaces are used.

        Pass your own network as `policy`; metta's are rebuilt.
        """
        return self.policy_store.load(checkpoint.path, env, policy)

    def upload(self, record: PolicyRecord, wandb_run: Any = None) -> str:
        """Log a saved policy as a W&B artifact; returns its ``wandb://`` URI.

        In offline mode the file waits in the run's folder for ``wandb sync``.
        """
        run = wandb_run or self.wandb_run
        if run is None:
            raise ConfigError("no W&B run to upload to; pass wandb_run")
        try:
            import wandb  # an extra, and slow to import
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb", "uploading policies") from error
        source = path_of(record.uri)
        name, alias = f"policy-{run.id}", f"epoch_{record.epoch:06d}"
        try:
            artifact = wandb.Artifact(name, type="model", metadata=record.to_dict())
            artifact.add_file(str(source / POLICY_FILE if source.is_dir() else source), POLICY_FILE)
            run.log_artifact(artifact, aliases=["latest", alias])
        except (OSError, ValueError, wandb.Error) as error:
            raise CheckpointError(f"{record.uri!r} could not be uploaded: {error}") from error
        place = "/".join(part for part in (run.entity, run.project, name) if part)
        self.latest_wandb_uri = f"wandb://{place}:{alias}"
        return self.latest_wandb_uri

    def _write(
        self, folder: Path, pending: PendingCheckpoint, log_mark: LogMark | None = None
    ) -> PolicyRecord:
        with self._lock:
            return self._write_alone(folder, pending, log_mark)

    def _write_alone(
        self, folder: Path, pending: PendingCheckpoint, log_mark: LogMark | None
    ) -> PolicyRecord:
        counters = {"epoch": pending.epoch, "agent_step": pending.agent_step}
        about = {**pending.metadata, **counters}
        mark = None if log_mark is None else log_mark.to_dict()
        path = write_checkpoint(
            folder, pending.snapshot, pending.policy, about, run_id=self.run_id, log_mark=mark
        )
        record = record_of_checkpoint(read_entry(path))
        self._prune(folder, path)
        return record

    def prune(self) -> None:
        """Remove checkpoints that are not kept: those that a crash, or a score still to come, left."""
        with self._lock:
            self._prune(self.checkpoint_dir, None)

    def _prune(self, folder: Path, newest: Path | None) -> None:
        try:
            prune_checkpoints(
                folder,
                keep_last=self.keep_last,
                keep_every=self.keep_every,
                keep_epochs=self.awaited_epochs,
                newest=newest,
                run_id=self.run_id,
            )
            drop_late_scores(folder)
        except OSError as error:  # the new one is safe; the old ones go with the next
            warnings.warn(
                f"old checkpoints in {str(folder)!r} could not be removed: {error}",
                MettaWarning,
                stacklevel=4,
            )

    def _described(self, policy: Policy, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """Metadata with the settings of a built-in agent; a user's network cannot be rebuilt."""
        built_in = isinstance(policy.module, ActorCritic | RecurrentActorCritic)
        known = {"agent": dataclasses.asdict(policy.config)} if built_in else {}
        return {**known, **(metadata or {})}

    def _folder(self, run_dir: str | os.PathLike[str] | None) -> Path:
        return self.checkpoint_dir if run_dir is None else RunDirectory(run_dir).checkpoint_dir


def _copied(
    registry: StateRegistry, policy: Policy, frozen: FrozenPolicy
) -> dict[str, dict[str, Any]]:
    """A copied snapshot; the policy's tensors are those of the frozen one."""
    snapshot = registry.snapshot()
    own = snapshot.pop(policy.state_name, None)
    copied: dict[str, dict[str, Any]] = {
        name: part if getattr(registry.get(name), "gives_copies", False) else copy_state(part)
        for name, part in snapshot.items()
    }
    if own is not None:
        copied[policy.state_name] = {"version": own["version"], "state": frozen.tensors}
    return copied


def _numbers_in(metrics: Any) -> dict[str, float]:
    """The metrics that are plain numbers."""
    found = metrics.items() if isinstance(metrics, Mapping) else ()
    return {name: float(value) for name, value in found if isinstance(value, int | float)}


CheckpointManager = TrainingCheckpointer
"""The same class, by the name that hooks know it by."""
