"""`train`: a whole run by one call, and the old name of the trainer."""

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from metta.curriculum import Curriculum
from metta.rl.components.environment_manager import Vectorization
from metta.rl.components.trainer import Trainer
from metta.rl.functional_trainer import restore_with_warning
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.rl.resume.run_saver import RunSaver
from metta.rl.session import build_hooks
from metta.rl.training_state import TrainerState
from metta.store.policy_store import PolicyStore
from metta.train.train_config import EvaluationConfig, TrainerConfig, TrainingConfig

__all__ = ["MettaTrainer", "train"]


def train(
    run_dir: str | os.PathLike[str],
    config: TrainerConfig | TrainingConfig | Mapping[str, Any],
    curriculum: Curriculum | None = None,
    policy: nn.Module | None = None,
    *,
    hooks: Sequence[Any] = (),
    vectorization: Vectorization | None = None,
    **options: Any,
) -> TrainerState:
    """Train in a run directory, or resume the run in it; returns the state reached.

        state = train("runs/first", small_fast_config())

    `options` are those of `Trainer`.
    """
    trainer = Trainer(config, curriculum, policy, run_dir=run_dir, **options)
    try:
        trainer.setup(vectorization)
        for hook in hooks:
            trainer.add_hook(hook)
        return trainer.train()
    finally:
        trainer.cleanup()


class MettaTrainer:
    """The trainer's old name; use `Trainer` or `train`.

        trainer = MettaTrainer(cfg, wandb_run, policy_store, sim_config, stats_client)
        trainer.train()

    `cfg` is a configuration or a mapping of settings; `sim_config` sets how to evaluate (None: not at
    all); checkpoints go to `policy_store` if one is given. A store that holds a checkpoint of this run
    resumes it, with a warning; of other settings or another seed, it is refused.
    """

    def __init__(
        self,
        cfg: TrainerConfig | TrainingConfig | Mapping[str, Any],
        wandb_run: Any = None,
        policy_store: PolicyStore | None = None,
        sim_config: EvaluationConfig | None = None,
        stats_client: Any = None,
    ) -> None:
        warnings.warn(
            "MettaTrainer is deprecated; use metta.rl.trainer.train(run_dir, config) or "
            "metta.rl.components.Trainer",
            DeprecationWarning,
            stacklevel=2,
        )
        self.trainer = Trainer(cfg)
        config = self.trainer.config
        evaluation = sim_config or EvaluationConfig(eval_episodes=0)
        self.trainer.hooks.wandb_run, self.trainer.hooks.stats_client = wandb_run, stats_client
        saving = None
        if policy_store is not None:
            saving = self._restored(policy_store, wandb_run)
        for hook in build_hooks(
            dataclasses.replace(config, evaluation=evaluation),
            self.trainer.curriculum,
            saving=saving,
            wandb_run=wandb_run,
            stats_client=stats_client,
        ):
            self.trainer.add_hook(hook)

    def _restored(self, policy_store: PolicyStore, wandb_run: Any) -> RunSaver:
        """Build the parts, and restore the run that the store holds."""
        config = self.trainer.config.checkpoint
        self.trainer.setup()
        assert self.trainer.components is not None
        checkpointer = TrainingCheckpointer.from_config(
            policy_store.root, config, policy_store, wandb_run
        )
        saving = RunSaver.from_config(checkpointer, config)
        try:
            restore_with_warning(saving, self.trainer.components)
        except BaseException:
            self.trainer.cleanup()
            raise
        return saving

    def train(self) -> TrainerState:
        """Train to the end and clean up."""
        try:
            return self.trainer.train()
        finally:
            self.trainer.cleanup()
