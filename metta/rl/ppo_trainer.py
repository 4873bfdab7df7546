"""`PPOTrainer`: collect, learn and train, each on its own or together."""

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metta.agent.factory import as_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.configured import configured_vec_env
from metta.envs.env_ids import name_of
from metta.envs.factory import exists_already
from metta.errors import CheckpointError, ConfigError, MettaWarning
from metta.rl.call_arguments import (
    checked_hooks,
    checked_steps,
    checked_total,
    refuse_arguments,
    require_trainer,
    rollout_of,
)
from metta.rl.collect.rollout_data import empty_rollout, is_empty_rollout, num_valid, origin_of
from metta.rl.familiar_calls import FamiliarCalls
from metta.rl.hooks.checkpoint import CheckpointHook
from metta.rl.hooks.metrics import MetricsHook
from metta.rl.learn.custom_losses import CustomLoss, LossFunction
from metta.rl.learn.numerics import NumericsPlan
from metta.rl.learn.update_log import LOSS_NAMES
from metta.rl.loop import (
    Collected,
    EpochListener,
    collect_rollout,
    learn_from_rollout,
    run_epoch,
    run_training,
    warn_when_silent,
)
from metta.rl.own_settings import checked_parts
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.rl.resume.run_saver import RunSaver
from metta.rl.saved_opponents import load_opponents
from metta.rl.training_components import (
    announcer,
    build_components,
    follow_recipe,
    make_experience,
    resolve_batch,
)
from metta.rollout import Rollout
from metta.store.checkpoints.files import MANIFEST_FILE, new_run_id, read_checkpoint
from metta.store.policy_store import path_of
from metta.store.run_directory import RunDirectory
from metta.train.advice import FOR_CHECKPOINT_DIR, FOR_LOAD
from metta.train.batch_sizing import BatchPlan
from metta.train.changes import plain_settings
from metta.train.recipes import Applied
from metta.train.train_config import TrainingConfig

__all__ = ["PPOTrainer"]

_NOTHING_LEFT = "this call of train() was completed before: it has nothing to do"


class PPOTrainer(FamiliarCalls):
    """PPO on an environment, with its phases apart.

        trainer = PPOTrainer(None, "CartPole-v1", learning_rate=1e-3)
        data = trainer.collect_rollouts(128)       # never learns
        metrics = trainer.learn(data)              # never touches the environment
        history = trainer.train(total_timesteps=100_000)

    `policy` is any `nn.Module` that `Policy` understands, a `Policy`, None for a default agent, or the name
    of a built-in one (``lstm``, ``MlpPolicy``).
    `env` is a gymnasium id, an environment, a factory, a list of factories, a vector environment, or a
    `Curriculum` of tasks.
    Settings go by any usual name (``learning_rate``, ``n_epochs``, ``clip_range``, ...); those that are
    not given follow from the environment (`metta.train.recipes`), or with ``recipe="none"`` from the
    defaults of `TrainingConfig`. Those that only a run acts on (evaluation, logs) are refused, and warned
    of in a `config`. Subclasses may override either phase and add columns to the data. `progress_bar` shows
    progress in `train`, on terminals, in notebooks and in logs.

    With a `checkpoint_dir`, `train` saves there at intervals, and a new trainer resumes the newest
    checkpoint of a run with the same settings: a script that was stopped is simply run again, and resumes
    to the bit. `allow_inexact` lets it do so under other libraries or threads.
    """

    def __init__(
        self,
        policy: nn.Module | str | None = None,
        env: Any = None,
        *,
        config: TrainingConfig | Mapping[str, Any] | None = None,
        custom_losses: Sequence[CustomLoss | LossFunction] = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        allow_inexact: bool = False,
        progress_bar: bool = False,
        **settings: Any,
    ) -> None:
        module, self.config, settings = checked_parts(policy, env, config, settings, checkpoint_dir)
        self.progress_bar = progress_bar
        self.batch_plan: BatchPlan | None = None
        """Sizes that `auto_batch` chose, and why."""
        self.curriculum = env if isinstance(env, Curriculum) else None
        about = self.config.trainer.curriculum
        probed = env if self.curriculum is None else self.curriculum.task
        if self.config.trainer.rollout.auto_batch:
            self.config, self.batch_plan = resolve_batch(self.config, probed)
        rollout, tasks = self.config.trainer.rollout, self.curriculum and self.curriculum.tasks
        self.env = configured_vec_env(
            tasks or env, rollout, about.env_kwargs, about.wrappers,
            is_elsewhere=self.config.trainer.collect.is_elsewhere,
        )  # fmt: skip
        self.env_name, self._run_id = name_of(env), new_run_id()
        try:
            self.recipe: Applied | None = follow_recipe(self.config, self.env, probed)
            """Settings that follow from what the environment is, because they were not given."""
            self.config = self.config if self.recipe is None else self.recipe.config
            self._build(module, custom_losses)
            self.components.conditions.allow_inexact = allow_inexact
            self.checkpointer = (
                None if checkpoint_dir is None else self._checkpointer(checkpoint_dir)
            )
            self._saving = self._new_saving()
            if self.checkpointer is not None and self.checkpointer.has_checkpoints():
                self.load()
                self._continue_calls()
        except BaseException:
            if not exists_already(env):  # made here, closed here
                self.env.close()
            raise

    def _build(
        self, policy: nn.Module | None, custom_losses: Sequence[CustomLoss | LossFunction]
    ) -> None:
        trainer = self.config.trainer
        spaces = self.env.observation_space, self.env.action_space
        self.policy: Policy = as_policy(policy, *spaces, self.config.agent, seed=trainer.seed)
        parts = build_components(
            trainer,
            self.policy,
            self.env,
            custom_losses=custom_losses,
            curriculum=self.curriculum,
            opponents=load_opponents(trainer, self.env),
        )
        parts.conditions.settings |= {**plain_settings(self.config), "environment": self.env_name}
        self.components, self.env = parts, parts.vecenv
        self.collector, self.ppo, self.optimizer = parts.collector, parts.ppo, parts.optimizer
        self.custom_losses, self.state = parts.custom_losses, parts.state
        self.registry, self._announce = parts.registry, announcer(trainer)
        self._steps_collected, self._calls_to_skip, self._continues_call = 0, 0, False
        self._rollout_stats: dict[str, list[float]] = {}
        self._origin = origin_of(self.policy, self.config, self.env_name)

    def collect_rollouts(self, n_steps: int | None = None) -> dict[str, Tensor]:
        """A rollout of `n_steps` per environment (default: the configured horizon), learning nothing.

        Episodes continue from call to call, so a rollout that is discarded still advances the run.

        Tensors are ``[T, N, ...]`` and belong to the caller: ``observations`` (one column per leaf for
        nested spaces), ``actions, rewards, terminated, truncated, valid, episode_starts, values,
        next_values, log_probs, advantages, returns``, where they exist ``action_masks``, and for
        recurrent policies ``recurrent_state/*`` ``[S, N, ...]`` at the start of each segment.
        """
        trainer = self.config.trainer
        horizon = trainer.rollout.horizon
        steps = checked_steps(
            horizon if n_steps is None else n_steps, "collect_rollouts(n_steps=...)"
        )
        if steps < 1:
            warnings.warn(f"collect_rollouts({steps}) collects nothing", MettaWarning, stacklevel=2)
            return empty_rollout(self.env.num_rows)
        if steps != self.collector.experience.horizon:
            self.collector.experience = make_experience(self.policy, self.env, trainer, steps)
        columns = self._collect()
        return Rollout({k: v.clone() for k, v in columns.items()}, self.manifest())

    def _collect(self) -> dict[str, Tensor]:
        """One rollout, in the buffer's own memory."""
        rollout_stats, num_steps = collect_rollout(self.components)
        self._steps_collected += num_steps
        for name, numbers in rollout_stats.items():
            self._rollout_stats.setdefault(name, []).extend(numbers)
        return self.collector.experience.columns

    def learn(
        self,
        rollout_data: Mapping[str, Tensor] | str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> dict[str, float]:
        """One update from a rollout in memory or in a file; the environment is not touched.

        The input is never changed. Normalisers take the rollout in after the update. An empty rollout
        changes nothing, warns, and returns zeros.
        """
        columns = rollout_of(rollout_data, others)
        if is_empty_rollout(columns):
            warnings.warn(
                "learn() got an empty rollout: nothing learned", MettaWarning, stacklevel=2
            )
            return dict.fromkeys(LOSS_NAMES, 0.0)
        return learn_from_rollout(self.components, columns)

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        hooks: Sequence[Any] = (),
        on_epoch_end: EpochListener | None = None,
        progress_bar: bool | None = None,
        **others: Any,
    ) -> dict[str, list[float]]:
        """Collect and learn until `total_timesteps` more agent steps are done.

        Returns every metric as a list with one entry per epoch, among them ``agent_step`` and
        ``episode_return`` (mean of the last 100 episodes; NaN before the first ends). `hooks` observe
        this call and are closed at its end; `on_epoch_end` is called with the state and the epoch's
        metrics; `progress_bar` is the trainer's where it is left out. A trainer that resumed a checkpoint
        continues with the call that was interrupted; those that were over return an empty history.
        """
        refuse_arguments(
            "train", others, ["total_timesteps", "hooks", "on_epoch_end", "progress_bar"]
        )
        default, given = self.config.trainer.total_timesteps, checked_hooks(hooks)
        total = checked_total(default if total_timesteps is None else total_timesteps)
        state, registry = self.state, self.components.hooks
        if self._calls_to_skip:
            self._calls_to_skip -= 1
            self._announce(_NOTHING_LEFT)
            return {}
        self.components.conditions.complete_plan(total)
        if not self._continues_call and total > 0:
            state.first_step, state.train_call = state.agent_step, state.train_call + 1
        self._continues_call = False
        state.stop_reason = None  # a stop that was asked for ended the call before
        names: list[str] = []
        added = [*self._saving_hooks(), *given]
        if self.progress_bar if progress_bar is None else progress_bar:
            added.append(MetricsHook(config=self.config.trainer.logging, total_timesteps=total))
        try:
            names += [registry.add(hook) for hook in added]
            with self._checkpoints_locked():
                history = run_training(
                    state,
                    lambda state: run_epoch(
                        state, registry, self._next_rollout, self.learn, total_timesteps=total
                    ),
                    until_step=state.first_step + total,
                    parts=self.components,
                    on_epoch_end=on_epoch_end,
                )
        finally:
            for name in names:
                registry.remove(name)
        warn_when_silent(state, self.collector.num_episodes)
        if not history:
            self._announce(_NOTHING_LEFT)
        return history

    def _checkpointer(self, folder: str | os.PathLike[str]) -> TrainingCheckpointer:
        saving = self.config.trainer.checkpoint
        return TrainingCheckpointer.from_config(folder, saving, run_id=self._run_id)

    def _continue_calls(self) -> None:
        """An interrupted script runs again: find which of its calls are over, and which one continues."""
        state = self.state
        self._continues_call = state.train_call > 0 and not state.call_was_stopped
        self._calls_to_skip = state.train_call - int(self._continues_call)
        self._announce(f"resumes at epoch {state.epoch} ({state.agent_step:,} steps)")

    def _checkpoints_locked(self) -> AbstractContextManager[object]:
        """Only one trainer may save and prune in the same folder."""
        if self.checkpointer is None:
            return nullcontext()
        return RunDirectory(self.checkpointer.checkpoint_dir).lock()

    def _new_saving(self) -> RunSaver | None:
        if self.checkpointer is None:
            return None
        return RunSaver.from_config(self.checkpointer, self.config.trainer.checkpoint)

    def _saving_hooks(self) -> list[CheckpointHook]:
        config = self.config.trainer.checkpoint
        if self._saving is None or not config.checkpoint_interval:
            return []
        interval = config.checkpoint_interval
        return [CheckpointHook(self.checkpointer, interval, saving=self._saving)]

    def save(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Commit a checkpoint of everything to `folder` (default: `checkpoint_dir`); returns its path.

        `load` restores it, here or in another process; `PolicyStore` finds the policy in it.
        """
        checkpointer = self.checkpointer if folder is None else self._checkpointer(folder)
        if checkpointer is None:
            raise ConfigError("save() needs a folder, because this trainer has no checkpoint_dir")
        self.components.environments.prepare()
        pending = checkpointer.snapshot(self.registry, self.policy, self.state)
        return path_of(checkpointer.commit(pending).uri)

    def load(self, path: str | os.PathLike[str] | None = None, **others: Any) -> None:
        """Continue from a checkpoint, or from the newest in a folder (default: `checkpoint_dir`).

        Everything comes back: policy, optimizer, counters, environments. To begin with another policy's
        weights only, use ``metta.store.load_weights``.
        """
        require_trainer(self, PPOTrainer)
        refuse_arguments("load", others, ["path"])
        folder = Path(path or (self.checkpointer.checkpoint_dir if self.checkpointer else ""))
        if path is None and self.checkpointer is None:
            raise ConfigError("load() needs a path, because this trainer has no checkpoint_dir")
        is_one = (folder / MANIFEST_FILE).is_file()
        saving = self._saving = self._new_saving()
        if path is not None or saving is None:
            saving = RunSaver(self._checkpointer(folder), 0)
        checkpointer = saving.checkpointer
        checkpoint = read_checkpoint(folder) if is_one else checkpointer.load_trainer_state()
        if checkpoint is None:
            raise CheckpointError(f"there is no checkpoint in {str(folder)!r}")
        checkpointer.advice = FOR_CHECKPOINT_DIR if path is None else FOR_LOAD
        saving.restore(self.registry, checkpoint)
        self._run_id = checkpointer.run_id
        if self.checkpointer is not None:
            self.checkpointer.run_id = self._run_id
        self._calls_to_skip, self._continues_call = 0, False

    def _next_rollout(self) -> Collected:
        """What the loop learns from, collected by a phase that a subclass may have overridden."""
        self._steps_collected, self._rollout_stats = 0, {}
        horizon = self.config.trainer.rollout.horizon
        phases = [getattr(phase, "__func__", None) for phase in (self.collect_rollouts, self.learn)]
        is_own = phases != [PPOTrainer.collect_rollouts, PPOTrainer.learn]
        data: Mapping[str, Tensor]
        if is_own or horizon != self.collector.experience.horizon:
            data = self.collect_rollouts(horizon)
        else:
            data = self._collect()  # it is not kept, so it need not be copied
        # a subclass that collects in its own way counts what it hands to learn()
        num_steps = self._steps_collected or num_valid(data)
        return Collected(self._rollout_stats, num_steps, self.collector.experience, data)

    @property
    def plan(self) -> NumericsPlan:
        """What decides the last bits of the numbers."""
        return self.components.plan

    @property
    def device(self) -> torch.device:
        """The device of the policy."""
        return self.policy.device

    @property
    def progress(self) -> float:
        """Share of the last or current `train` call that is done; steers schedules, may be set."""
        return self.state.progress

    @progress.setter
    def progress(self, share: float) -> None:
        self.state.progress = share

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes collected; NaN before the first ends."""
        return self.state.stats.mean_return

    def digest(self) -> str:
        """Hash of the run's state: weights, optimizer, counters, carried observations.

        Settings and the insides of environments are not part of it.
        """
        return self.registry.digest()

    def manifest(self) -> dict[str, Any]:
        """Where a rollout of this moment comes from, as plain data."""
        policy_hash, rollout = self.policy.parameter_hash(), self.collector.num_rollouts - 1
        return {**self._origin, "policy_hash": policy_hash, "rollout": rollout}

    def close(self) -> None:
        """Stop environments and workers; may be called more than once."""
        self.env.close()

    def __enter__(self) -> "PPOTrainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
