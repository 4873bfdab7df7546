"""`Trainer`: a run from set-up to clean-up."""

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from metta.agent.factory import as_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, StateError
from metta.rl.call_arguments import chosen_curriculum
from metta.rl.components.environment_manager import EnvironmentManager, Vectorization
from metta.rl.components.evaluation_manager import EvaluationManager
from metta.rl.components.optimizer_manager import OptimizerManager
from metta.rl.components.rollout_manager import RolloutManager
from metta.rl.components.stats_manager import StatsManager
from metta.rl.components.training_manager import TrainingManager
from metta.rl.evaluate.evaluator import PolicyEvaluator, require_own_env
from metta.rl.hooks.registry import HookRegistry
from metta.rl.joint_start import begin_together, shared_values
from metta.rl.learn.custom_losses import CustomLoss, LossFunction
from metta.rl.learn.numerics import resolve_device
from metta.rl.loop import EpochFunction, default_training_step, run_training
from metta.rl.process_group import join_ranks, telling_others
from metta.rl.ranks import Ranks
from metta.rl.resume.run_settings import recipe_of_run
from metta.rl.resume.shard_states import bring_shards
from metta.rl.saved_opponents import load_opponents
from metta.rl.session import RunSession
from metta.rl.stop_signals import stopping_on_signals
from metta.rl.training_components import (
    TrainingComponents,
    announcer,
    build_components,
    follow_recipe,
    resolve_batch,
)
from metta.rl.training_state import TrainerState
from metta.stateful import Stateful
from metta.train.batch_sizing import BatchPlan
from metta.train.changes import plain_settings
from metta.train.layers import resolve, with_recipe_origins
from metta.train.recipes import Applied
from metta.train.settings import apply_settings
from metta.train.train_config import TrainerConfig, TrainingConfig, WandbConfig

__all__ = ["Trainer"]


class Trainer:
    """Trains a policy and calls hooks on the way.

        trainer = Trainer(config, curriculum, policy)          # only trains: you add the hooks
        trainer.add_hook(MyHook())
        trainer.train()

        trainer = Trainer(config, env=MyEnv)                   # as for PPOTrainer: class, factory, id, ...
        trainer = Trainer(config, run_dir="runs/first")        # a run: saved, measured, evaluated
        trainer.setup(vectorization="multiprocessing")
        trainer.train()
        trainer.cleanup()

    `env` is all that `PPOTrainer` takes, in place of a curriculum; without both, the settings name it.
    `trainer_config` is a `TrainerConfig`, a whole `TrainingConfig`, or a mapping of settings;
    `global_config` gives the rest of the experiment where it is not in the first. `policy` is any module
    that `Policy` understands, or None for the configured agent. With a `run_dir` that holds a checkpoint,
    `setup` restores it and `train` continues; what else a run takes is described at `RunSession`.
    """

    def __init__(  # noqa: PLR0913  # a whole run: everything by name
        self,
        trainer_config: TrainerConfig | TrainingConfig | Mapping[str, Any],
        curriculum: Curriculum | None = None,
        policy: nn.Module | None = None,
        *,
        env: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
        run_name: str | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        replay_dir: str | os.PathLike[str] | None = None,
        stats_dir: str | os.PathLike[str] | None = None,
        wandb_config: WandbConfig | Mapping[str, Any] | None = None,
        global_config: TrainingConfig | Mapping[str, Any] | None = None,
        custom_losses: Sequence[CustomLoss | LossFunction] = (),
        step_fn: EpochFunction = default_training_step,
        wandb_run: Any = None,
        stats_client: Any = None,
        provenance: Mapping[str, Any] | None = None,
        allow_inexact: bool | None = None,
        changes: Collection[str] | None = None,
    ) -> None:
        self.training_config = _whole_config(trainer_config, global_config)
        self._given_policy, self._custom_losses, self._step_fn = policy, custom_losses, step_fn
        self.curriculum = chosen_curriculum(self.training_config, env, curriculum)
        trainer = dataclasses.replace(self.config, curriculum=self.curriculum.config)
        self.training_config = dataclasses.replace(self.training_config, trainer=trainer)
        options = {
            "run_name": run_name,
            "checkpoint_dir": checkpoint_dir,
            "replay_dir": replay_dir,
            "stats_dir": stats_dir,
            "wandb_config": wandb_config,
            "wandb_run": wandb_run,
            "stats_client": stats_client,
            "provenance": provenance,
            "allow_inexact": allow_inexact,
            "changes": changes,
        }
        self.session: RunSession | None = None
        if run_dir is not None:
            self.session = RunSession(run_dir, **options)
        elif unused := sorted(name for name, value in options.items() if value is not None):
            raise ConfigError(
                f"{', '.join(unused)} belong to a run directory; give run_dir as well, or add your hooks "
                "with add_hook"
            )
        self._own_state: list[Stateful] = []
        self.state = TrainerState()
        self.hooks = HookRegistry(self.state)
        self.environment_manager = EnvironmentManager(self.config, self.curriculum)
        self.components: TrainingComponents | None = None
        self.batch_plan: BatchPlan | None = None
        """Sizes that `auto_batch` chose, and why."""
        self.recipe: Applied | None = None
        """Settings that follow from what the environment is, because they were not given."""
        self._is_closed = self._has_failed = False
        self.stop_signal: int | None = None
        """The signal that ended the last training, if one did."""
        self.ranks = Ranks(self.config.rollout.num_shards)  # setup meets the others

    @property
    def config(self) -> TrainerConfig:
        """Settings of training."""
        return self.training_config.trainer

    @property
    def policy(self) -> Policy:
        """The policy that trains."""
        return self._ready().policy

    def setup(self, vectorization: Vectorization | None = None) -> None:
        """Build whatever was not passed in: environments, policy, learner, and a run's hooks.

        A run that was saved in the `run_dir` is restored: weights, counters and environments.
        `vectorization` is ``serial`` or ``multiprocessing``; by default ``rollout.num_workers`` decides.
        Does nothing when it was done before.
        """
        if self._is_closed:
            raise StateError("this trainer was cleaned up; make a new one to continue")
        if self.components is not None:
            return
        if self.session is not None and self.config.evaluation.eval_episodes > 0:
            require_own_env(self.curriculum.task)
        self._join_ranks()
        with telling_others(self.ranks):
            if self.session is not None:
                self.session.open()  # refused before any work if another trainer uses it
            try:
                self._build(vectorization)
            except BaseException:
                self.cleanup()
                raise

    def _join_ranks(self) -> None:
        """Meet the other processes of the run; only the first has its folder, and talks."""
        system, shards = self.config.system, self.config.rollout.num_shards
        device = resolve_device(self.config.device)
        self.ranks = join_ranks(shards, device, system)
        self.hooks.is_master = self.ranks.is_master
        if not self.ranks.is_master:
            self.session = None
            self.training_config = apply_settings(self.training_config, {"verbose": False})
            self.environment_manager.config = self.config

    def _build(self, vectorization: Vectorization | None) -> None:
        task = self.curriculum.task
        if self.config.rollout.auto_batch:
            self.training_config, self.batch_plan = resolve_batch(self.training_config, task)
            self.environment_manager.config = self.config
        self.environment_manager.num_local = len(self.ranks.shards)
        vecenv = self.environment_manager.create(vectorization)
        self._follow_recipe(vecenv)
        spaces = vecenv.observation_space, vecenv.action_space
        agent, seed = self.training_config.agent, self.config.seed
        policy = as_policy(self._given_policy, *spaces, agent, seed=seed)
        parts = build_components(
            self.config,
            policy,
            vecenv,
            custom_losses=self._custom_losses,
            hooks=self.hooks,
            curriculum=self.curriculum,
            opponents=load_opponents(self.config, vecenv),
            ranks=self.ranks,
        )
        parts.conditions.settings |= plain_settings(self.training_config)
        for state in self._own_state:
            parts.registry.add(state)
        self.components = parts
        if self.session is not None:
            with self.session.directory.setting_up():
                self.session.attach(parts, self.training_config, self.curriculum, self._evaluator)
            if not isinstance(task.env, str):
                announcer(self.config)(_without_id(task.name))
            parts.conditions.complete_plan()
        begin_together(parts, self.session)

    def _follow_recipe(self, vecenv: VecEnv) -> None:
        """Fill in what was not chosen; a run that is there already keeps what it was begun with."""
        frozen = {} if self.session is None else recipe_of_run(self.session.directory)
        before, task = self.training_config, self.curriculum.task
        if self.ranks.is_master:
            self.recipe = follow_recipe(before, vecenv, task, frozen=frozen)
        values = shared_values(self.ranks, {} if self.recipe is None else self.recipe.values)
        if not self.ranks.is_master and values:
            self.training_config = apply_settings(before, values)
            self.environment_manager.config = self.config
        if self.recipe is None:
            return
        self.training_config = self.recipe.config
        self.environment_manager.config = self.config
        if self.session is not None:
            known = self.session.provenance or resolve(before, check_sizes=False).provenance()
            self.session.provenance = with_recipe_origins(known, self.recipe)

    @functools.cached_property
    def _evaluator(self) -> PolicyEvaluator:
        settings, seed = self.config.evaluation, self.config.seed
        return PolicyEvaluator(self.curriculum.task, settings, seed=seed)

    @functools.cached_property
    def rollout_manager(self) -> RolloutManager:
        """The collecting part."""
        return RolloutManager(self._ready().collector)

    @functools.cached_property
    def training_manager(self) -> TrainingManager:
        """The learning part."""
        return TrainingManager(self._ready().ppo, self._ready().custom_losses)

    @functools.cached_property
    def optimizer_manager(self) -> OptimizerManager:
        """The optimizer and its schedule."""
        return OptimizerManager(self.config.optimizer, self._ready().optimizer)

    @functools.cached_property
    def stats_manager(self) -> StatsManager:
        """Statistics that are not reported yet."""
        return StatsManager(self.state)

    @functools.cached_property
    def evaluation_manager(self) -> EvaluationManager:
        """Scores, asked for at any time."""
        return EvaluationManager(self._evaluator, self.state)

    def digest(self) -> str:
        """Hash of the run's state: weights, optimizer, counters, carried observations.

        Settings, the insides of environments and what hooks noted are not part of it. In a run of several
        processes all of them must call it.
        """
        parts = self._ready()
        bring_shards(parts.registry, self.ranks)
        return parts.registry.digest()

    def _ready(self) -> TrainingComponents:
        if self.components is None:
            self.setup()
        assert self.components is not None
        return self.components

    def train(self) -> TrainerState:
        """Train until the configured number of agent steps; returns the run's state.

        Ctrl-C and SIGTERM end training after the epoch in which they come, with everything saved.
        Training that has reached its goal returns at once.
        """
        self.setup()
        parts = self._ready()
        self.state.stop_reason = self.state.agreed_stop = None
        self._has_failed = True
        with telling_others(self.ranks), stopping_on_signals(self.state) as signals:
            try:
                run_training(
                    self.state,
                    lambda state: self._step_fn(state, parts, self.config, parts.experience),
                    until_step=self.config.total_timesteps,
                    parts=parts,
                    keep_history=False,
                )
            finally:
                self.stop_signal = signals.received or self.state.shared.get("stop_signal")
        self._has_failed = False
        return self.state

    def add_state(self, state: Stateful) -> None:
        """Save and restore your component with the run; call it before `setup`, which restores."""
        if self.components is not None:
            raise StateError(
                f"add_state({state.state_name!r}) came after setup(), which restores a saved run; call it "
                "before"
            )
        self._own_state.append(state)

    def add_hook(self, hook: Any) -> str:
        """Register an observer; returns its name. A wrong event or parameter name is a `HookError`."""
        return self.hooks.add(hook)

    def remove_hook(self, hook: Any) -> Any:
        """Close and remove a hook, given as an object or by name."""
        return self.hooks.remove(hook)

    def replace_hook(self, hook: Any, other: Any) -> str:
        """Put another hook in a hook's place, from the next event on."""
        return self.hooks.replace(hook, other)

    def enable_hook(self, hook: Any) -> None:
        """Let a disabled hook receive events again."""
        self.hooks.enable(hook)

    def disable_hook(self, hook: Any) -> None:
        """Keep a hook from receiving events."""
        self.hooks.disable(hook)

    def describe_hooks(self) -> str:
        """A table of the hooks in the order in which they receive events."""
        return self.hooks.describe()

    def cleanup(self) -> None:
        """Close hooks, environments and the run, for good; may be called more than once."""
        self._is_closed = True
        try:
            self.hooks.close()
        finally:
            self.environment_manager.close()
            if self.session is not None:
                self.session.close(failed=self._has_failed)

    def __enter__(self) -> "Trainer":
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _without_id(name: str) -> str:
    return (
        f"the environment {name} was passed as an object, so this run is resumed from Python with the same "
        "one; `metta resume` and `metta eval` need a name for it, e.g. env='my_module:MyEnv'"
    )


def _whole_config(
    trainer_config: TrainerConfig | TrainingConfig | Mapping[str, Any],
    global_config: TrainingConfig | Mapping[str, Any] | None,
) -> TrainingConfig:
    if isinstance(trainer_config, TrainingConfig):
        if global_config is not None:
            raise ConfigError(
                "trainer_config is a whole TrainingConfig already; leave global_config out, or pass its "
                "trainer"
            )
        return trainer_config
    if isinstance(trainer_config, Mapping):
        if trainer_config.keys() & {"trainer", "agent"}:
            return TrainingConfig.from_dict(trainer_config)
        trainer_config = TrainingConfig.from_dict({"trainer": dict(trainer_config)}).trainer
    if not isinstance(trainer_config, TrainerConfig):
        raise ConfigError(
            f"trainer_config is a {type(trainer_config).__name__}; give a TrainerConfig, a "
            "TrainingConfig or a mapping of settings"
        )
    if global_config is None:
        global_config = TrainingConfig()
    elif isinstance(global_config, Mapping):
        global_config = TrainingConfig.from_dict(global_config)
    return dataclasses.replace(global_config, trainer=trainer_config)
