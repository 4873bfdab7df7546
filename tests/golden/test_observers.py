"""Watching a run does not change it."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from metta.curriculum import Curriculum
from metta.loggers import StatsLogger
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks import CheckpointHook, EvaluationHook, MetricsHook, TrainerHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.train.settings import apply_settings
from metta.train.train_config import EvaluationConfig, TrainingConfig

SETTINGS = {
    "env": "CartPole-v1",
    "total_timesteps": 160,
    "num_envs": 4,
    "horizon": 8,
    "update_epochs": 2,
    "num_minibatches": 2,
    "hidden_size": 8,
    "learning_rate": 1e-2,
    "normalize_observations": True,
    "verbose": False,
    "eval_episodes": 2,
    "checkpoint_interval": 1,
    "monitor_seconds": 0.05,
}


def digest_of(trainer: Trainer) -> str:
    """Of the whole run: weights, optimizer, counters, statistics, carried observations."""
    assert trainer.components is not None
    return trainer.components.registry.digest()


def trained(run_dir: Path | None = None, vectorization: str = "serial", **more: Any) -> str:
    config = apply_settings(TrainingConfig(), {**SETTINGS, **more})
    trainer = Trainer(config, run_dir=run_dir)
    try:
        trainer.setup(vectorization)
        state = trainer.train()
        assert state.epoch == 5
        return digest_of(trainer)
    finally:
        trainer.cleanup()


@pytest.fixture(scope="module")
def unwatched() -> str:
    return trained()


class Swapper(TrainerHook):
    """Adds, disables, enables, replaces and removes hooks while training runs."""

    order = 5

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainer: Trainer | None = None

    def on_epoch_start(self, trainer_state) -> None:
        trainer, epoch = self.trainer, trainer_state.epoch
        assert trainer is not None
        if epoch == 0:
            trainer.add_hook(MetricsHook(verbose=False))
            checkpointer = TrainingCheckpointer(self.folder)
            trainer.add_hook(CheckpointHook(checkpointer, 1))
        elif epoch == 1:
            trainer.replace_hook("MetricsHook", MetricsHook(verbose=False, logger=StatsLogger()))
            trainer.disable_hook("CheckpointHook")
        elif epoch == 2:
            config = EvaluationConfig(evaluate_interval=1, eval_episodes=2)
            trainer.add_hook(EvaluationHook(config, Curriculum()))
            trainer.enable_hook("CheckpointHook")
        elif epoch == 3:
            trainer.remove_hook("MetricsHook")


@pytest.mark.parametrize("vectorization", ["serial", "multiprocessing"])
def test_runs_are_equal_when_nobody_or_somebody_watches(
    unwatched: str, vectorization: str, tmp_path: Path
) -> None:
    found = {
        "no hooks": trained(vectorization=vectorization),
        "three hooks": trained(tmp_path / "three", vectorization=vectorization),
        "evaluation each epoch": trained(
            tmp_path / "eval", vectorization=vectorization, evaluate_interval=1
        ),
        "every statistic": trained(
            tmp_path / "all",
            vectorization=vectorization,
            grad_stats_interval=1,
            weight_stats_interval=1,
            heartbeat_seconds=0.01,
        ),
    }
    assert found == dict.fromkeys(found, unwatched)


@pytest.mark.parametrize("vectorization", ["serial", "multiprocessing"])
def test_runs_are_equal_when_every_sink_writes(
    unwatched: str, vectorization: str, tmp_path: Path
) -> None:
    more = {"tensorboard": True, "trainer.logging.wandb.mode": "offline", "verbose": True}
    more["wandb_checkpoint_interval"] = 2
    assert trained(tmp_path / "run", vectorization, **more) == unwatched


@pytest.mark.parametrize("vectorization", ["serial", "multiprocessing"])
def test_runs_are_equal_when_hooks_are_swapped_at_run_time(
    unwatched: str, vectorization: str, tmp_path: Path
) -> None:
    config = apply_settings(TrainingConfig(), SETTINGS)
    swapper, trainer = Swapper(tmp_path), Trainer(config)
    swapper.trainer = trainer
    trainer.add_hook(swapper)
    trainer.setup(vectorization)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train()
    assert digest_of(trainer) == trainer.digest() == unwatched
    assert [type(hook).__name__ for hook in trainer.hooks] == [
        "Swapper",
        "CheckpointHook",
        "EvaluationHook",
    ]
    assert sorted(path.name for path in tmp_path.glob("epoch_*"))
    trainer.cleanup()


@pytest.mark.parametrize("log_interval", [1, 3])
def test_runs_are_equal_when_episodes_are_reset_at_checkpoints(
    log_interval: int, tmp_path: Path
) -> None:
    more = {"env_restore": "sync_reset", "checkpoint_interval": 2, "log_interval": log_interval}
    alone = trained(**more)
    assert trained(tmp_path, **more) == alone
    assert trained(**{**more, "checkpoint_interval": 0}) != alone  # episodes were reset


def test_runs_are_equal_when_a_ppo_trainer_is_watched_and_saved(tmp_path: Path) -> None:
    config = apply_settings(TrainingConfig(), {**SETTINGS, "log_interval": 2})
    evaluation = EvaluationConfig(evaluate_interval=1, eval_episodes=2)
    digests = set()
    for folder in (None, tmp_path):
        hooks: list[Any] = []
        if folder is not None:
            hooks = [MetricsHook(verbose=False), EvaluationHook(evaluation, Curriculum())]
        with PPOTrainer(None, "CartPole-v1", config=config, checkpoint_dir=folder) as trainer:
            trainer.train(hooks=hooks)
            assert bool(hooks) == (trainer.state.eval_epoch == 5)
            digests.add(trainer.digest())
    assert len(digests) == 1
