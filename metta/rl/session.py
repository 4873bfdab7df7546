"""`RunSession`: what surrounds training in a run directory."""

import dataclasses
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.curriculum import Curriculum
from metta.envs.vec_env import RestoreSupport
from metta.errors import CheckpointError, ConfigError, MettaWarning
from metta.loggers import (
    ConsoleSink,
    CsvSink,
    EventLog,
    Sink,
    StatsClient,
    StatsLogger,
    TensorboardSink,
    close_wandb_run,
    open_wandb_run,
)
from metta.loggers.events.history import last_event
from metta.loggers.events.log import LogMark
from metta.private_folders import sweep_scratch
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.evaluate.outcome import LateEvaluations
from metta.rl.evaluate.run_queue import QueuedRun, open_queue
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.checkpoint import CheckpointHook
from metta.rl.hooks.evaluation import EvaluationHook
from metta.rl.hooks.metrics import MetricsHook
from metta.rl.ranks import RESTART_REASON
from metta.rl.remote.remote_collector import RemoteCollector
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.rl.resume.run_saver import RunSaver
from metta.rl.resume.run_settings import check_continuation, own_parts, write_settings
from metta.rl.training_components import TrainingComponents, announcer
from metta.stateful import digest_of
from metta.store.checkpoints.files import Checkpoint
from metta.store.checkpoints.manifest import is_run_id, read_log_mark
from metta.store.run_directory import RunDirectory
from metta.train.advice import FOR_RUNS
from metta.train.changes import plain_settings
from metta.train.train_config import TrainerConfig, TrainingConfig, WandbConfig
from metta.untrusted.json_files import brief

__all__ = ["RunSession", "build_hooks"]


def build_hooks(  # noqa: PLR0913  # all services by name
    config: TrainerConfig,
    curriculum: Curriculum | None = None,
    *,
    saving: RunSaver | None = None,
    evaluator: PolicyEvaluator | None = None,
    logger: StatsLogger | None = None,
    wandb_run: Any = None,
    stats_client: Any = None,
    replay_dir: str | os.PathLike[str] | None = None,
    evaluations: LateEvaluations | None = None,
) -> list[TrainerHook]:
    """The three hooks as the configuration asks for them; those without anything to do are left out.

    `saving` is the service of the run that saves it. Replays go to `replay_dir`. `evaluations` play
    elsewhere what the run wants to have scored.
    """
    hooks: list[TrainerHook] = []
    intervals = config.checkpoint.checkpoint_interval, config.checkpoint.wandb_checkpoint_interval
    if saving is not None and any(intervals):
        hooks.append(CheckpointHook(saving.checkpointer, *intervals, saving=saving))
    if config.evaluation.eval_episodes > 0:
        hooks.append(
            EvaluationHook(
                config.evaluation,
                curriculum,
                evaluator=evaluator,
                seed=config.seed,
                replay_dir=replay_dir,
                evaluations=evaluations,
                announce=announcer(config),
            )
        )
    if logger is not None or wandb_run is not None or stats_client is not None or config.verbose:
        hooks.append(
            MetricsHook(
                wandb_run,
                stats_client,
                verbose=config.verbose,
                logger=logger,
                config=config.logging,
                total_timesteps=config.total_timesteps,
            )
        )
    return hooks


class RunSession:
    """Lock, configuration files, services and hooks of a run directory.

        session = RunSession("runs/first")
        session.open()                                  # refused while another trainer uses it
        session.attach(components, config, curriculum)  # restores, writes config.yaml, adds the hooks
        session.close()

    `checkpoint_dir` (and likewise the other folders) replaces the usual place below the run directory;
    `wandb_config` replaces the configured one; a `wandb_run` or `stats_client` that is given is used and
    stays open. `provenance` is stored beside the configuration: who set each value. A run is resumed only
    under the conditions that it was saved under (libraries, threads, device), unless `allow_inexact`.
    `changes` names the settings that this call asks for, where all others were read from the run's
    ``config.yaml``, which must then agree with the checkpoint; None: all are asked for by this call.
    """

    def __init__(  # noqa: PLR0913  # everything by name, most of it seldom
        self,
        run_dir: str | os.PathLike[str],
        *,
        run_name: str | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        replay_dir: str | os.PathLike[str] | None = None,
        stats_dir: str | os.PathLike[str] | None = None,
        wandb_config: WandbConfig | Mapping[str, Any] | None = None,
        wandb_run: Any = None,
        stats_client: Any = None,
        provenance: Mapping[str, Any] | None = None,
        allow_inexact: bool | None = None,
        changes: Collection[str] | None = None,
    ) -> None:
        self.directory = RunDirectory(run_dir)
        self.run_name = run_name or self.directory.name
        self._given_checkpoint_dir = checkpoint_dir
        self._given_replay_dir = replay_dir
        self.stats_dir = Path(stats_dir or self.directory.stats_dir)
        if isinstance(wandb_config, Mapping):
            wandb_config = WandbConfig(**wandb_config)
        self.wandb_config = wandb_config
        self.wandb_run, self.stats_client = wandb_run, stats_client
        self.provenance, self.allow_inexact = provenance, bool(allow_inexact)
        self._changes = changes
        self.restore_support: RestoreSupport | None = None
        """How this run's environments come back when it is resumed; None where nothing is saved."""
        self.restored_path: Path | None = None
        """The checkpoint that the run continues from."""
        self._opened_wandb: Any = None
        self._event_log: EventLog | None = None
        self._evaluations: LateEvaluations | None = None

    @property
    def checkpoint_dir(self) -> Path:
        """The folder that was asked for, now or, inside of the run, when it began; else the usual one."""
        return Path(self._given_checkpoint_dir or self.directory.place("checkpoint_dir"))

    @property
    def replay_dir(self) -> Path:
        """The folder that was asked for, now or, inside of the run, when it began; else the usual one."""
        return Path(self._given_replay_dir or self.directory.place("replay_dir"))

    def open(self) -> None:
        """Take the run's lock; `RunLockedError` names the trainer that has it."""
        self.directory.acquire()
        sweep_scratch()

    def attach(
        self,
        parts: TrainingComponents,
        config: TrainingConfig,
        curriculum: Curriculum,
        evaluator: PolicyEvaluator | None = None,
    ) -> None:
        """Restore the run, write the configuration down, open the services, and add the hooks."""
        if self.wandb_config is not None:
            logging = dataclasses.replace(config.trainer.logging, wandb=self.wandb_config)
            trainer = dataclasses.replace(config.trainer, logging=logging)
            config = dataclasses.replace(config, trainer=trainer)
        # what trains counts, wherever it was set
        trainer = dataclasses.replace(config.trainer, curriculum=curriculum.config)
        config = dataclasses.replace(config, trainer=trainer)
        run_id = self._run_id()
        checkpointer = TrainingCheckpointer.from_config(
            self.checkpoint_dir, trainer.checkpoint, wandb_run=self.wandb_run, run_id=run_id
        )
        checkpointer.advice, parts.conditions.allow_inexact = FOR_RUNS, self.allow_inexact
        if trainer.checkpoint.checkpoint_interval:
            self.restore_support = parts.environments.prepare()
        checkpoint = checkpointer.load_trainer_state(run_id=run_id)
        if checkpoint is not None:
            checkpointer.run_id = checkpoint.run_id or checkpointer.run_id
        about = self._describe(parts, curriculum, config, checkpointer.run_id)
        parts.conditions.settings |= {**plain_settings(config), **own_parts(about)}
        if checkpoint is not None:
            check_continuation(self.directory, parts.conditions, checkpoint, self._changes)
        # refused before anything is written
        if trainer.evaluation.eval_episodes > 0:
            settings = trainer.evaluation
            evaluator = evaluator or PolicyEvaluator(curriculum.task, settings, seed=trainer.seed)
            self._evaluations = self._open_queue(parts, trainer, evaluator, checkpointer.run_id)
        self._event_log = self._open_log(checkpoint)
        saving, resumes = RunSaver.from_config(checkpointer, trainer.checkpoint), False
        if checkpoint is None:
            self._warn_of_lost_checkpoints()
        else:
            resumes = saving.restore(parts.registry, checkpoint)
            self.restored_path = checkpoint.path
        write_settings(self.directory, config, about, self.provenance, resumes=resumes)
        checkpointer.before_commit = self._sync_events
        self._open_services(parts, config)
        checkpointer.wandb_run = self.wandb_run
        parts.state.shared["env_name"] = about["own_environment"] or config.env
        hooks = build_hooks(
            trainer,
            curriculum,
            saving=saving,
            evaluator=evaluator,
            logger=self._logger(trainer),
            wandb_run=self.wandb_run,
            stats_client=self.stats_client,
            replay_dir=self.replay_dir,
            evaluations=self._evaluations,
        )
        for hook in hooks:
            parts.hooks.add(hook)
        self._watch(parts, hooks)

    def _open_queue(
        self,
        parts: TrainingComponents,
        config: TrainerConfig,
        evaluator: PolicyEvaluator,
        run_id: str,
    ) -> LateEvaluations | None:
        is_saved = config.checkpoint.checkpoint_interval > 0
        run = QueuedRun(
            run_id,
            self.directory.path,
            self.checkpoint_dir.absolute(),
            self.replay_dir.absolute(),
            is_saved,
        )
        return open_queue(config.evaluation, evaluator, parts.policy, run)

    def _open_services(self, parts: TrainingComponents, config: TrainingConfig) -> None:
        """W&B and the events, which get to know where the run is computed."""
        assert self._event_log is not None
        shared, whole = parts.state.shared, config.to_dict()
        shared["run_name"] = self.run_name
        if not parts.layout.is_plain:
            shared["layout"], whole["layout"] = parts.layout.describe(), parts.layout.to_dict()
        if self.stats_client is None:
            self.stats_client = StatsClient(self._event_log)
        if reason := os.environ.get(RESTART_REASON):
            StatsClient(self._event_log).record_rank_restart(reason=reason)
        if self.wandb_run is None:
            wandb, path = config.trainer.logging.wandb, self.directory.path
            opened = open_wandb_run(wandb, path, self.run_name, whole)
            self.wandb_run = self._opened_wandb = opened
        parts.hooks.wandb_run, parts.hooks.stats_client = self.wandb_run, self.stats_client

    def _watch(self, parts: TrainingComponents, hooks: Sequence[TrainerHook]) -> None:
        """Let records have the times of this run's layout, and the event log its restarts."""
        for hook in hooks:
            if isinstance(hook, MetricsHook):
                hook.timer.include(parts.phase_seconds)
        if isinstance(parts.collector, RemoteCollector):
            parts.collector.on_restart.append(self._record_restart)

    def _record_restart(self, place: int, reason: str) -> None:
        if self._event_log is not None:
            StatsClient(self._event_log).record_restart(place=place, reason=reason)

    def _open_log(self, checkpoint: Checkpoint | None) -> EventLog:
        """The event log, compared with the checkpoint's record of it."""
        mark = None if checkpoint is None else LogMark.from_dict(read_log_mark(checkpoint.path))
        log = EventLog(self.directory.events_file, mark=mark)
        if checkpoint is not None and log.sequence == 0:
            log.damage.append("it is missing or empty")
        return log

    def _warn_of_lost_checkpoints(self) -> None:
        """A run that saved policies had checkpoints."""
        saved = last_event(self.directory.events_file, "policy")
        if saved is not None:
            warnings.warn(
                f"{str(self.directory.path)!r} holds a run that saved a policy at epoch "
                f"{saved.payload.get('epoch')}, but {str(self.checkpoint_dir)!r} has no checkpoint: "
                "training begins anew",
                MettaWarning,
                stacklevel=2,
            )

    def _sync_events(self) -> LogMark:
        """What was logged up to a checkpoint must be as safe as the checkpoint."""
        assert self._event_log is not None
        mark = self._event_log.sync()
        if mark is None:
            raise CheckpointError(f"{str(self.directory.events_file)!r} cannot be written")
        return mark

    def _describe(
        self, parts: TrainingComponents, curriculum: Curriculum, config: TrainingConfig, run_id: str
    ) -> dict[str, Any]:
        """What the settings do not hold."""
        env, module = curriculum.task.env, parts.policy.module
        own_policy = not isinstance(module, ActorCritic | RecurrentActorCritic)
        stored = self.directory.about()
        return {
            "id": run_id,
            "name": self.run_name,
            "checkpoint_dir": self._named(self._given_checkpoint_dir, stored.get("checkpoint_dir")),
            "replay_dir": self._named(self._given_replay_dir, stored.get("replay_dir")),
            "own_environment": None if isinstance(env, str) else curriculum.task.name,
            "own_policy": type(module).__name__ if own_policy else None,
            "environments": None
            if self.restore_support is None
            else dataclasses.asdict(self.restore_support),
            "settings_sha256": digest_of(plain_settings(config)),
        }

    def _named(self, given: str | os.PathLike[str] | None, stored: str | None) -> str | None:
        """A folder for `run.json`: one inside of the run moves with it."""
        if given is None:
            return stored
        folder, own = Path(given).absolute(), self.directory.path
        return str(folder.relative_to(own) if folder.is_relative_to(own) else folder)

    def _run_id(self) -> str | None:
        """The id that the run was given when it began; None for a new one, and one of older versions."""
        found = self.directory.about().get("id")
        if found is not None and not is_run_id(found):
            raise ConfigError(
                f"{str(self.directory.about_file)!r} has the id {brief(found)}, which metta did not write; "
                "restore the file from a copy"
            )
        return found

    def _logger(self, config: TrainerConfig) -> StatsLogger:
        sinks: list[Sink] = []
        if config.logging.csv:
            sinks.append(CsvSink(self.directory.metrics_file))
            if config.evaluation.is_elsewhere or self.directory.evaluations_file.exists():
                sinks.append(CsvSink(self.directory.evaluations_file, of_late_scores=True))
        if config.logging.tensorboard:
            sinks.append(TensorboardSink(self.directory.tensorboard_dir))
        if config.verbose:
            sinks.append(ConsoleSink(config.total_timesteps))
        return StatsLogger(
            sinks,
            event_log=self._event_log,
            run_dir=self.directory.path,
            wandb_run=self.wandb_run,
        )

    def close(self, *, failed: bool = False) -> None:
        """Close what was opened here and release the run; may be called more than once."""
        try:
            if self._evaluations is not None:
                self._evaluations.close()
            close_wandb_run(self._opened_wandb, exit_code=int(failed))
        finally:
            self._opened_wandb = None
            if self._event_log is not None:
                self._event_log.close()
                self._event_log = None
            self.directory.release()
