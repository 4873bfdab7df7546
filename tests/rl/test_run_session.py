"""What surrounds training in a run directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from metta.curriculum import Curriculum
from metta.errors import ConfigError, RunLockedError
from metta.loggers import StatsLogger
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.rl.resume.run_saver import RunSaver
from metta.rl.session import RunSession, build_hooks
from metta.train.settings import apply_settings
from metta.train.train_config import TrainerConfig, TrainingConfig, WandbConfig

QUIET = {"verbose": False, "monitor_seconds": 0}


def config(**settings: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {**QUIET, **settings})


def kinds(hooks: list[Any]) -> list[str]:
    return [type(hook).__name__ for hook in hooks]


def test_hooks_are_those_that_have_something_to_do_when_they_are_built(tmp_path: Path) -> None:
    saver = RunSaver(TrainingCheckpointer(tmp_path), 1)
    assert kinds(build_hooks(config().trainer)) == ["EvaluationHook"]
    assert kinds(build_hooks(config(eval_episodes=0).trainer)) == []
    assert kinds(build_hooks(config(eval_episodes=0).trainer, saving=saver)) == ["CheckpointHook"]
    without = config(eval_episodes=0, checkpoint_interval=0).trainer
    assert kinds(build_hooks(without, saving=saver)) == []
    assert kinds(build_hooks(without, logger=StatsLogger())) == ["MetricsHook"]
    assert kinds(build_hooks(TrainerConfig())) == ["EvaluationHook", "MetricsHook"]


@pytest.fixture
def trainer():
    with PPOTrainer(None, "CartPole-v1", num_envs=2, n_steps=8) as trainer:
        yield trainer


def attached(
    folder: Path, trainer: PPOTrainer, whole: TrainingConfig, **options: Any
) -> RunSession:
    session = RunSession(folder, **options)
    session.open()
    session.attach(trainer.components, whole, Curriculum(whole.trainer.curriculum))
    return session


def test_settings_and_who_set_them_are_stored_when_a_run_begins(
    tmp_path: Path, trainer: PPOTrainer
) -> None:
    whole = config(learning_rate=0.125)
    attached(tmp_path, trainer, whole).close()
    assert TrainingConfig.from_yaml(tmp_path / "config.yaml") == whole
    stored = json.loads((tmp_path / "provenance.json").read_text())["settings"]
    assert stored["trainer.optimizer.learning_rate"]["value"] == 0.125
    assert stored["trainer.ppo.gamma"]["origin"] == "default"


def test_the_given_provenance_is_stored_when_there_is_one(
    tmp_path: Path, trainer: PPOTrainer
) -> None:
    attached(tmp_path, trainer, config(), provenance={"settings": {}, "mine": 1}).close()
    assert json.loads((tmp_path / "provenance.json").read_text())["mine"] == 1


def test_places_are_those_asked_for_when_they_are_given(tmp_path: Path) -> None:
    session = RunSession(tmp_path / "run", run_name="x", checkpoint_dir=tmp_path / "saved")
    assert (session.run_name, session.checkpoint_dir) == ("x", tmp_path / "saved")
    assert session.replay_dir == tmp_path / "run" / "replays"
    assert RunSession(tmp_path / "run").run_name == "run"


def test_offline_wandb_is_opened_and_closed_when_the_run_asks_for_it(
    tmp_path: Path, trainer: PPOTrainer
) -> None:
    session = attached(
        tmp_path, trainer, config(), wandb_config={"mode": "offline", "project": "p"}
    )
    assert session.wandb_run is not None
    assert trainer.components.hooks.wandb_run is session.wandb_run
    session.close()
    session.close()
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    stored = TrainingConfig.from_yaml(tmp_path / "config.yaml")
    assert stored.trainer.logging.wandb == WandbConfig(mode="offline", project="p")


def test_services_that_are_given_stay_open_when_the_session_ends(
    tmp_path: Path, trainer: PPOTrainer
) -> None:
    class Service:
        finished = False

        def finish(self) -> None:
            self.finished = True

    run, client = Service(), Service()
    session = attached(tmp_path, trainer, config(), wandb_run=run, stats_client=client)
    assert trainer.components.hooks.stats_client is client
    session.close()
    assert not run.finished


def test_the_run_is_locked_until_the_session_is_closed(tmp_path: Path) -> None:
    first, second = RunSession(tmp_path), RunSession(tmp_path)
    first.open()
    with pytest.raises(RunLockedError, match="is in use by another trainer"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_the_error_says_which_setting_is_wrong_when_wandb_is_misspelt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="modes"):
        RunSession(tmp_path, wandb_config={"modes": "offline"})
