"""`RunSession`: what surrounds training in a run directory."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metta.agent.actor_critic import ActorCritic, RecurrentActorCritic
from metta.curriculum import Curriculum
from metta.envs.vec_env import RestorePromise
from metta.errors import CheckpointError, ConfigError, UnsafeFileError
from metta.files import atomic_write_text
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
from metta.loggers.event_log import LogMark
from metta.rl.checkpointer import TrainingCheckpointer
from metta.rl.conditions import RunConditions
from metta.rl.environment_state import EnvironmentState
from metta.rl.evaluator import PolicyEvaluator, require_own_env
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.checkpoint import CheckpointHook
from metta.rl.hooks.evaluation import EvaluationHook
from metta.rl.hooks.metrics import MetricsHook
from metta.rl.training_components import TrainingComponents
from metta.secrets import scrub_all
from metta.store.checkpoint_files import Checkpoint
from metta.store.checkpoint_manifest import read_log_mark
from metta.store.run_directory import RunDirectory
from metta.train.changes import check_changes
from metta.train.layers import resolve
from metta.train.origins import DEFAULT
from metta.train.train_config import TrainerConfig, TrainingConfig, WandbConfig
from metta.untrusted.json_files import read_json

__all__ = ["RunSession", "build_hooks"]


def build_hooks(  # noqa: PLR0913  # all services by name
    config: TrainerConfig,
    curriculum: Curriculum | None = None,
    *,
    checkpointer: TrainingCheckpointer | None = None,
    checkpoint: Checkpoint | None = None,
    evaluator: PolicyEvaluator | None = None,
    logger: StatsLogger | None = None,
    wandb_run: Any = None,
    stats_client: Any = None,
    replay_dir: str | os.PathLike[str] | None = None,
) -> list[TrainerHook]:
    """The three hooks as the configuration asks for them; those without anything to do are left out.

    `checkpoint` is what the run goes on from; by default it is the newest of the `checkpointer`. Replays
    go to `replay_dir`.
    """
    hooks: list[TrainerHook] = []
    saving = config.checkpoint
    intervals = saving.checkpoint_interval, saving.wandb_checkpoint_interval
    # what was saved is taken up also by a run that will not save
    if checkpointer is not None and (any(intervals) or checkpointer.has_checkpoints()):
        hooks.append(
            CheckpointHook(
                checkpointer,
                *intervals,
                resume=checkpoint or True,
                env_restore=saving.env_restore,
                rescue_share=saving.rescue_share,
            )
        )
    if config.evaluation.eval_episodes > 0:
        evaluation = config.evaluation
        if curriculum is not None:
            require_own_env(curriculum.task)
        hooks.append(
            EvaluationHook(
                evaluation,
                curriculum,
                evaluator=evaluator,
                seed=config.seed,
                replay_dir=replay_dir,
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
        session.open()                                  # refused while another trainer is at work
        session.attach(components, config, curriculum)  # writes config.yaml and adds the hooks
        session.close()

    `checkpoint_dir` (and likewise the other folders) replaces the usual place below the run directory;
    `wandb_config` replaces the configured one; a `wandb_run` or `stats_client` that is given is used and
    stays open. `provenance` is stored beside the configuration: who set each value. A run is taken up only
    under the conditions that it was saved under (libraries, threads, device), unless `allow_inexact`.
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
        self.promise: RestorePromise | None = None
        """How this run's environments come back when it is resumed; None where nothing is saved."""
        self._opened_wandb: Any = None
        self._event_log: EventLog | None = None

    @property
    def paths_set(self) -> set[str]:
        """Settings that somebody chose, also where the choice equals the default."""
        settings = (self.provenance or {}).get("settings", {})
        return {path for path, about in settings.items() if about["origin"] != str(DEFAULT)}

    @property
    def checkpoint_dir(self) -> Path:
        """The folder that was asked for, now or when the run began; else the usual one."""
        given = self._given_checkpoint_dir or self._about().get("checkpoint_dir")
        return Path(given or self.directory.checkpoint_dir)

    @property
    def replay_dir(self) -> Path:
        """The folder that was asked for, now or when the run began; else the usual one."""
        given = self._given_replay_dir or self._about().get("replay_dir")
        return Path(given or self.directory.replay_dir)

    def open(self) -> None:
        """Take the run's lock; `RunLockedError` names the trainer that has it."""
        self.directory.acquire()

    def attach(
        self,
        parts: TrainingComponents,
        config: TrainingConfig,
        curriculum: Curriculum,
        evaluator: PolicyEvaluator | None = None,
    ) -> None:
        """Write the configuration down, open the services, and add the hooks."""
        if self.wandb_config is not None:
            logging = dataclasses.replace(config.trainer.logging, wandb=self.wandb_config)
            trainer = dataclasses.replace(config.trainer, logging=logging)
            config = dataclasses.replace(config, trainer=trainer)
        # what trains counts, wherever it was set
        trainer = dataclasses.replace(config.trainer, curriculum=curriculum.config)
        config = dataclasses.replace(config, trainer=trainer)
        checkpointer = TrainingCheckpointer.from_config(
            self.checkpoint_dir, trainer.checkpoint, wandb_run=self.wandb_run
        )
        parts.conditions.allow_inexact = self.allow_inexact
        if trainer.checkpoint.checkpoint_interval:
            environments = parts.registry.get(EnvironmentState.state_name)
            self.promise = environments.prepare(trainer.checkpoint.env_restore)
        about = self._describe(parts, curriculum)
        checkpoint = checkpointer.load_trainer_state()
        if checkpoint is not None:
            self._check_continuation(config, about, checkpoint.agent_step)
            conditions = checkpoint.snapshot.get(RunConditions.state_name)
            if conditions is not None:
                parts.conditions.compare(conditions["state"])
        self._event_log = self._open_log(checkpoint)  # refused before anything is written
        self._write_configuration(config, about)
        checkpointer.before_commit = self._sync_events
        if self.stats_client is None:
            self.stats_client = StatsClient(self._event_log)
        if self.wandb_run is None:
            path, whole = self.directory.path, config.to_dict()
            opened = open_wandb_run(trainer.logging.wandb, path, self.run_name, whole)
            self.wandb_run = self._opened_wandb = opened
        checkpointer.wandb_run = self.wandb_run
        parts.state.shared["run_name"] = self.run_name
        parts.hooks.wandb_run, parts.hooks.stats_client = self.wandb_run, self.stats_client
        hooks = build_hooks(
            trainer,
            curriculum,
            checkpointer=checkpointer,
            checkpoint=checkpoint,
            evaluator=evaluator,
            logger=self._logger(trainer),
            wandb_run=self.wandb_run,
            stats_client=self.stats_client,
            replay_dir=self.replay_dir,
        )
        for hook in hooks:
            parts.hooks.add(hook)

    def _open_log(self, checkpoint: Checkpoint | None) -> EventLog:
        """The event log, compared with what the checkpoint says of it."""
        mark = None if checkpoint is None else LogMark.from_dict(read_log_mark(checkpoint.path))
        log = EventLog(self.directory.events_file, mark=mark)
        if checkpoint is not None and log.sequence == 0:
            log.damage.append("it is missing or empty")
        return log

    def _sync_events(self) -> LogMark:
        """What was logged up to a checkpoint must be as safe as the checkpoint."""
        assert self._event_log is not None
        mark = self._event_log.sync()
        if mark is None:
            raise CheckpointError(f"{str(self.directory.events_file)!r} cannot be written")
        return mark

    def _describe(self, parts: TrainingComponents, curriculum: Curriculum) -> dict[str, Any]:
        """What the settings do not say."""
        env, module = curriculum.task.env, parts.policy.module
        own_policy = not isinstance(module, ActorCritic | RecurrentActorCritic)
        stored = self._about()
        given = self._given_checkpoint_dir or stored.get("checkpoint_dir")
        replays = self._given_replay_dir or stored.get("replay_dir")
        return {
            "name": self.run_name,
            "checkpoint_dir": None if given is None else str(Path(given).absolute()),
            "replay_dir": None if replays is None else str(Path(replays).absolute()),
            "own_environment": None if isinstance(env, str) else curriculum.task.name,
            "own_policy": type(module).__name__ if own_policy else None,
            "environments": None if self.promise is None else dataclasses.asdict(self.promise),
        }

    def _about(self) -> dict[str, Any]:
        try:
            found = read_json(self.directory.about_file)
        except UnsafeFileError:
            return {}
        return found if isinstance(found, dict) else {}

    def _check_continuation(
        self, config: TrainingConfig, about: Mapping[str, Any], reached: int
    ) -> None:
        """Refuse to go on with another task, network or learning rule, before anything is written."""
        where, stored = str(self.directory.path), self._about()
        for key, what in (("own_environment", "environment"), ("own_policy", "network")):
            if stored and stored.get(key) != about[key]:
                raise ConfigError(
                    f"{where} holds a run with the {what} {stored.get(key) or 'of its settings'}, now it "
                    f"is {about[key] or 'that of the settings'}; go on from Python with the same one"
                )
        if not self.directory.config_file.exists():
            return
        before = TrainingConfig.from_yaml(self.directory.config_file)
        check_changes(before, config, where)
        wanted = config.trainer.total_timesteps
        if wanted != before.trainer.total_timesteps and wanted <= reached:
            raise ConfigError(
                f"there is nothing to do: {where} is at {reached:,} steps already, and "
                f"total_timesteps={wanted:,}; give a larger one"
            )

    def _write_configuration(self, config: TrainingConfig, about: Mapping[str, Any]) -> None:
        described = json.dumps(scrub_all(about), indent=2)
        atomic_write_text(self.directory.about_file, described)
        config.to_yaml(self.directory.config_file)
        provenance = self.provenance or resolve(config, check_sizes=False).provenance()
        text = json.dumps(scrub_all(provenance), indent=2)
        atomic_write_text(self.directory.provenance_file, text)

    def _logger(self, config: TrainerConfig) -> StatsLogger:
        sinks: list[Sink] = []
        if config.logging.csv:
            sinks.append(CsvSink(self.directory.metrics_file))
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
        """Close what was opened here and let others have the run; may be called more than once."""
        try:
            close_wandb_run(self._opened_wandb, exit_code=int(failed))
        finally:
            self._opened_wandb = None
            if self._event_log is not None:
                self._event_log.close()
                self._event_log = None
            self.directory.release()
